"""Indexes that change: what was acknowledged is there, whatever happened to who wrote it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import isthmus
from isthmus.indexes.manifest import read_manifest
from isthmus.records import Query
from isthmus.retrieval.searcher import Searcher, open_searcher


@pytest.fixture(scope="module")
def corpora(
    write_corpus: Callable[[Path, int], Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """A corpus, and what was added to it: a third of it replaced, the rest new."""
    folder = tmp_path_factory.mktemp("corpora")
    lines = write_corpus(folder / "all.jsonl", 300).read_text(encoding="utf-8").splitlines()
    changed = [line.replace('"text": "', '"text": "changed ') for line in lines[100:150]]
    parts = {
        "first": lines[:150],
        "more": [*changed, *lines[150:]],
        "living": [*lines[10:100], *changed, *lines[150:]],
    }
    for name, part in parts.items():
        (folder / f"{name}.jsonl").write_text("\n".join(part) + "\n", encoding="utf-8")
    return {name: folder / f"{name}.jsonl" for name in parts}


def test_an_index_that_was_changed_is_the_index_of_what_is_left(
    commands: Any, corpora: dict[str, Path], model: Path, tmp_path: Path
) -> None:
    index, anew = tmp_path / "index", tmp_path / "anew"
    exact = ("--model", model, "--set", "encoding.backend=torch-float32")
    build = ("index", corpora["first"], *exact, "--output", index)
    commands.succeed(*build)
    assert "already holds this index" in commands.succeed(*build).stderr
    added = commands.succeed("add", index, corpora["more"], "--set", "block_size=64")
    assert "added 150 documents, replaced 50; the index has 300" in added.stdout
    unwanted = ("delete", index, *(f"d{number}" for number in range(10)), "nobody")
    refused = commands.run(*unwanted)
    assert refused.returncode == 2
    assert "1 of 11 ids are not in the index: 'nobody'" in refused.stderr
    deleted = commands.succeed(*unwanted, "--set", "problems=skip")
    assert "deleted 10 documents; the index has 290" in deleted.stdout
    commands.succeed("index", corpora["living"], *exact, "--output", anew)
    queries = [
        Query(str(number), json.loads(line)["text"])
        for number, line in enumerate(corpora["living"].read_text().splitlines()[:20])
    ]
    # Rounded otherwise, and fused as parts of the narrow range of scores of so small a model.
    for use, tolerance in (("bm25", 0.0), ("dense", 1e-5), (None, 1e-2)):
        searcher, expected = (open_searcher(folder, use, str(model)) for folder in (index, anew))
        same_scores(searcher, expected, queries, tolerance)
    (best,) = expected.search(queries[:1], 1)[0].document_ids
    assert best in commands.succeed("search", index, queries[0].text).stdout
    commands.succeed("sync", index, corpora["living"], "--compact")
    same_scores(open_searcher(index, model=str(model)), expected, queries, 1e-2)
    assert len(list((index / "segments").iterdir())) == 1
    assert "has no field 'bm52'" in commands.run("search", index, "ba", "--use", "bm52").stderr
    other = commands.run("index", corpora["more"], *exact, "--output", index)
    assert "already holds another index" in other.stderr


def same_scores(one: Searcher, two: Searcher, queries: list[Query], tolerance: float) -> None:
    # Texts were encoded beside others, which may round the last bits of a vector differently.
    for mine, theirs in zip(one.search(queries, 300), two.search(queries, 300), strict=True):
        np.testing.assert_allclose(mine.scores, theirs.scores, rtol=tolerance, atol=tolerance)
    found = [ranking.document_ids[0] for ranking in two.search(queries, 1)]
    assert [ranking.document_ids[0] for ranking in one.search(queries, 1)] == found
    assert one.documents(found) == two.documents(found)


def test_tuned_weights_stay_with_the_folder(
    commands: Any, collection: Path, model: Path, tmp_path: Path
) -> None:
    index, anew = tmp_path / "index", tmp_path / "anew"
    for folder in (index, anew):
        commands.succeed("index", collection, "-m", model, "-o", folder, "-s", "tokens=false")
    judged = ("--queries", collection, "--split", "train")
    how = ("--split", "train", "--set", "steps=4", "--set", "candidates=50")
    tuned = json.loads(commands.succeed("tune", index, collection, *how, "--json").stdout)
    assert list(tuned["weights"]) == isthmus.open_index(index).names
    by_hand = ("--set", f"weights={json.dumps(tuned['weights'])}", "--set", "candidates=50")
    hand, own = tmp_path / "hand.trec", tmp_path / "own.trec"
    commands.succeed("search", anew, *judged, "-o", hand, *by_hand, "--set", "tag=x")
    commands.succeed("search", index, *judged, "-o", own, "--set", "tag=x")
    assert own.read_text() == hand.read_text()
    report = isthmus.evaluate(collection / "qrels" / "train.tsv", own, measures="nDCG@10")
    assert list(report.means["nDCG@10"].values()) == pytest.approx([tuned["value"]], abs=1e-9)
    commands.succeed("delete", index, "d399")
    assert read_manifest(index).fusion.weights == tuned["weights"], "a change leaves them"
