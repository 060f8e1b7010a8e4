"""Approximate search from the command line: built beside an index, searched, lost, built again."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from click.testing import Result
from typer.testing import CliRunner

from isthmus.cli import app
from isthmus.collections import read_run
from isthmus.encoders import load_encoder
from isthmus.encoders.sparse import SparseEncoder, SparseSettings
from isthmus.errors import InputError, SettingsError
from isthmus.records import Query
from isthmus.retrieval.searcher import open_searcher

pytest.importorskip("faiss", reason="the extra [ann] is not installed")
SEISMIC = pytest.mark.skipif(
    find_spec("seismic") is None, reason="pyseismic-lsr is not installed (no wheel for ARM)"
)


def run(*arguments: str | Path) -> Result:
    """The command in this process, which need not load everything again."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def succeed(*arguments: str | Path) -> Result:
    done = run(*arguments)
    assert done.exit_code == 0, done.output
    return done


@pytest.fixture(scope="module")
def models(model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The tiny encoder, its weights large enough for texts to differ, and as a sparse one."""
    folder = tmp_path_factory.mktemp("models")
    places = {kind: folder / kind for kind in ("dense", "sparse")}
    dense = load_encoder(str(model), exact=True)
    with torch.no_grad():
        for weight in dense.backbone.parameters():
            weight *= 5
    settings = SparseSettings(document_max_length=32, document_terms=40, query_terms=20)
    sparse = SparseEncoder(dense.backbone, dense.tokenizer, settings)
    for encoder, place in zip((dense, sparse), places.values(), strict=True):
        place.mkdir()
        encoder.save(place)
    return places


@pytest.mark.parametrize(
    ("kind", "name", "setting"),
    [
        ("dense", "hnsw", "neighbours=8"),
        pytest.param("sparse", "seismic", "postings=900", marks=SEISMIC),
    ],
)
def test_built_searched_lost_and_built_again(
    models: dict[str, Path],
    write_corpus: Callable[[Path, int], Path],
    tmp_path: Path,
    kind: str,
    name: str,
    setting: str,
) -> None:
    index, lines = tmp_path / "index", write_corpus(tmp_path / "all.jsonl", 300).read_text()
    first, more = tmp_path / "first.jsonl", tmp_path / "more.jsonl"
    first.write_text("".join(lines.splitlines(keepends=True)[:200]))
    more.write_text("".join(lines.splitlines(keepends=True)[200:]))
    texts = [json.loads(line)["text"] for line in lines.splitlines()]
    queries = tmp_path / "queries.tsv"
    queries.write_text("".join(f"q{row}\t{text}\n" for row, text in enumerate(texts[::10])))
    build = ["index", "--model", models[kind], "--corpus", first, "--output", index]
    chosen = ["--set", f"approximate.name={name}", "--set", f"approximate.{setting}"]
    near = ["--set", f"backend={name}"]

    succeed(*build)
    missing = run("search", index, texts[0], *near).exception
    assert isinstance(missing, InputError)
    assert f"isthmus merge {index} --set approximate.name={name}" in missing.remedy
    other = {"hnsw": "seismic", "seismic": "ivf"}[name]
    wrong = run(*build, "--set", f"approximate.name={other}").exception
    assert isinstance(wrong, SettingsError)
    assert name in wrong.allowed

    built = succeed(*build, *chosen)
    assert "nothing to do" in built.stderr  # nothing encoded again
    assert f"{name}: finds " in built.stderr
    assert "of the 10 nearest documents" in built.stderr
    assert "times as fast as exact search" in built.stderr
    asked = [Query(f"q{row}", text) for row, text in enumerate(texts[::10])]

    def answers() -> list[set[str]]:
        """What is found for each query, after it was compared with the exact answers."""
        file = tmp_path / "near.trec"
        file.unlink(missing_ok=True)
        succeed("search", index, "--queries", queries, "--run", file, "--depth", "10", *near)
        found = read_run(file).rankings
        right = open_searcher(index).search(asked, 10)
        shared = [len({*found[r.query_id].document_ids} & {*r.document_ids}) for r in right]
        assert sum(shared) > 0.8 * 10 * len(asked)
        return [{*found[query.id].document_ids} for query in asked]

    first_found = set().union(*answers())
    added = succeed("add", index, "--corpus", more)
    assert "added 100 documents" in added.stdout
    found = set().union(*answers())
    new = {f"d{row}" for row in range(200, 300)}
    assert new & found
    gone = [min(found & new), min(found & first_found)]
    succeed("delete", index, *gone)
    assert set().union(*answers()).isdisjoint(gone)

    merged = succeed("merge", index)
    again = f"isthmus merge {index} {' '.join(chosen)}"
    assert "".join(again.split()) in "".join(merged.stderr.split())
    lost = run("search", index, texts[0], *near).exception
    assert f"has no {name} beside it" in str(lost)
    rebuilt = succeed(*again.split()[1:])
    assert f"{name}: finds " in rebuilt.stderr
    assert "one whole of 298 documents" in rebuilt.stdout
    assert set().union(*answers()).isdisjoint(gone)
    best = open_searcher(index, backend=name).search(asked[:1], 1)[0].document_ids[0]  # type: ignore[arg-type]
    assert best in succeed("search", index, asked[0].text, *near).stdout
