"""Approximations beside indexes that change: never a wrong answer, never a lost document."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse

from isthmus.errors import InputError, SettingsError
from isthmus.indexes.approximation import (
    About,
    ApproximationSettings,
    approximations,
    building_command,
    read_about,
)
from isthmus.indexes.construction import builder_for
from isthmus.indexes.dense.faiss_builder import build_faiss
from isthmus.indexes.inverted.seismic_approximation import build_seismic
from isthmus.indexes.manifest import CorpusOrigin, Description, EncoderOrigin, InvertedSettings
from isthmus.indexes.segments.index import open_index
from isthmus.indexes.segments.writer import IndexWriter
from isthmus.records import Document

pytest.importorskip("faiss", reason="the extra [ann] is not installed")
ROWS, SIZE = 400, 12
# They miss much, so that one sees who answered.
LAZY = {
    "hnsw": ApproximationSettings(name="hnsw", neighbours=2, construction=2, effort=1),
    "ivf": ApproximationSettings(name="ivf", lists=10, effort=1),
    "seismic": ApproximationSettings(name="seismic", postings=60, query_terms=1),
}
SEISMIC = pytest.mark.skipif(
    find_spec("seismic") is None, reason="pyseismic-lsr is not installed (no wheel for ARM)"
)
EVERY = pytest.mark.parametrize("name", ["hnsw", "ivf", pytest.param("seismic", marks=SEISMIC)])


@pytest.fixture(autouse=True)
def quick_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("isthmus.config.output.environment", dict)


def vectors(rows: int, seed: int, name: str) -> Any:
    weights = np.random.default_rng(seed).gamma(1, 1, (rows, SIZE)).astype(np.float32)
    return scipy.sparse.csr_matrix(weights) if name == "seismic" else weights


def documents(first: int, last: int) -> list[Document]:
    return [Document(f"d{row}", "") for row in range(first, last)]


@pytest.fixture
def build(tmp_path: Path) -> Callable[[str], Path]:
    """Builds an index with an approximation beside it."""

    def make(name: str) -> Path:
        sparse = name == "seismic"
        description = Description(
            kind="inverted" if sparse else "dense",
            corpus=CorpusOrigin(spec="c", fingerprint="c"),
            titles=False,
            encoder=EncoderOrigin(name="e", fingerprint="e"),
            dimension=SIZE,
            dtype=None if sparse else "float32",
            inverted=InvertedSettings() if sparse else None,
        )
        with builder_for(tmp_path / "index", description) as builder:
            builder.add(documents(0, ROWS), vectors(ROWS, 0, name))
            folder = builder.finish({})
        (build_seismic if sparse else build_faiss)(folder, LAZY[name])
        return folder

    return make


def ask(folder: Path, backend: str, asked: Any, depth: int = 10) -> list[tuple[str, ...]]:
    names = [str(number) for number in range(asked.shape[0])]
    found = open_index(folder, backend).search(asked, depth, names)  # type: ignore[arg-type]
    return [ranking.document_ids for ranking in found]


@EVERY
def test_what_is_added_is_found_and_the_rest_still_approximate(
    build: Callable[[str], Path], name: str
) -> None:
    folder, asked = build(name), vectors(30, 1, name)
    before, exact = ask(folder, name, asked), ask(folder, "numpy", asked)
    assert before != exact
    with IndexWriter(folder) as writer:
        writer.add(documents(ROWS, ROWS + 4), 9 * asked[:4])  # nobody's nearer
        writer.commit()
    found = ask(folder, name, asked)
    new = {document.id for document in documents(ROWS, ROWS + 4)}
    assert all(new <= {*ids} for ids in found)
    old = [tuple(document for document in ids if document not in new) for ids in found]
    assert old == [ids[:6] for ids in before], "the others as they were found before"
    everything = ask(folder, "numpy", asked, ROWS + 4)
    for ranking, whole in zip(found, everything, strict=True):
        places = [whole.index(document) for document in ranking]
        assert places == sorted(places), "scores as exact search has them"
    assert not approximations(folder), "it lies with its segment"


@EVERY
def test_what_is_deleted_is_not_found_and_others_take_its_place(
    build: Callable[[str], Path], name: str
) -> None:
    folder, asked = build(name), vectors(5, 2, name)
    gone: set[str] = set()
    for ids in ask(folder, name, asked, 38):
        gone |= {*ids}  # all that lies near the queries, where it looks first
    assert 38 < len(gone) < ROWS / 2
    with IndexWriter(folder) as writer:
        writer.delete(gone)
        writer.commit()
    for depth in (10, 150):
        for ids in ask(folder, name, asked, depth):
            assert len(ids) == depth
            assert gone.isdisjoint(ids)
    (few,) = open_index(folder, name).search(  # type: ignore[arg-type]
        asked[:1], 10, ["q"], among=[*list(gone)[:3], "d1", "d2", "d3"]
    )
    assert {*few.document_ids} == {"d1", "d2", "d3"} - gone


@EVERY
def test_a_merge_says_that_it_is_gone_and_how_it_comes_back(
    build: Callable[[str], Path], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, asked = build(name), vectors(10, 1, name)
    with IndexWriter(folder) as writer:
        writer.add(documents(ROWS, ROWS + 10), asked)
        writer.commit()
        assert "is gone" not in capsys.readouterr().err
        writer.merge()
    command = building_command(folder, LAZY[name])
    said = "".join(capsys.readouterr().err.split())
    assert f"{name}wasmadeofdocumentsthatlieelsewherenow,andisgone;" in said
    assert "".join(command.split()) in said
    assert not approximations(folder)
    with pytest.raises(InputError, match=f"has no {name} beside it") as caught:
        open_index(folder, name)  # type: ignore[arg-type]
    assert f"isthmus merge {folder} --set approximate.name={name}" in caught.value.remedy


@EVERY
def test_it_stays_where_nothing_changed_in_the_end(
    build: Callable[[str], Path], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, asked = build(name), vectors(10, 1, name)
    before = ask(folder, name, asked)
    with IndexWriter(folder) as writer:
        writer.add(documents(ROWS, ROWS + 10), asked)
        writer.commit()
        writer.delete(document.id for document in documents(ROWS, ROWS + 10))
        writer.commit()
        assert ask(folder, name, asked) == before
        writer.merge()
    assert ask(folder, name, asked) == before
    assert approximations(folder) == [name]
    assert not (folder / "segments").exists()
    assert "is gone" not in capsys.readouterr().err


def test_merging_by_itself_says_so_too(
    build: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = build("hnsw")
    with IndexWriter(folder) as writer:
        writer.delete(f"d{row}" for row in range(ROWS // 2 + 1))
        writer.commit()
    assert "isgone;isthmusmerge" in "".join(capsys.readouterr().err.split())
    with pytest.raises(InputError, match="has no hnsw beside it"):
        open_index(folder, "hnsw")


def test_one_that_is_damaged_is_refused_and_built_again(build: Callable[[str], Path]) -> None:
    folder = build("ivf")
    file = folder / "ivf" / "vectors.faiss"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(InputError, match=r"damaged: 'vectors\.faiss'") as caught:
        open_index(folder, "ivf")
    assert building_command(folder, LAZY["ivf"]) in caught.value.remedy
    build_faiss(folder, LAZY["ivf"])
    assert len(open_index(folder, "ivf")) == ROWS


@SEISMIC
def test_backends_of_other_kinds_are_refused(build: Callable[[str], Path], tmp_path: Path) -> None:
    dense = build("hnsw").rename(tmp_path / "dense")
    sparse = build("seismic")
    with pytest.raises(SettingsError, match="seismic is for an inverted index") as caught:
        open_index(dense, "seismic")
    assert caught.value.allowed == "numpy, faiss, hnsw, ivf"
    for backend in ("faiss", "hnsw", "ivf"):
        with pytest.raises(SettingsError, match=f"{backend} is for a dense index") as caught:
            open_index(sparse, backend)  # type: ignore[arg-type]
        assert caught.value.allowed == "numpy, seismic"
    shutil.rmtree(sparse / "seismic")
    with pytest.raises(InputError, match="has no seismic beside it") as missing:
        open_index(sparse, "seismic")
    assert missing.value.allowed == "numpy"
    with pytest.raises(InputError, match="has no ivf beside it") as missing:
        open_index(dense, "ivf")
    assert missing.value.allowed == "hnsw, numpy, faiss"


def test_settings_belong_to_one_or_another() -> None:
    for values, message in [
        ({"name": "ivf", "neighbours": 4}, "neighbours is a setting of hnsw, not of ivf"),
        ({"effort": 4, "name": "seismic"}, "effort is a setting of hnsw and ivf, not of seismic"),
        ({"postings": 4}, "postings is a setting of seismic, not of hnsw"),
    ]:
        with pytest.raises(SettingsError, match=message):
            ApproximationSettings.parse(values, "--set")
    with pytest.raises(SettingsError) as caught:
        ApproximationSettings.parse({"name": "seismik"}, "--set")
    assert caught.value.allowed.startswith("seismic")


@SEISMIC
def test_what_is_known_is_read_back_and_its_command_names_what_was_chosen(
    build: Callable[[str], Path],
) -> None:
    about = read_about(build("seismic"), "seismic")
    assert about is not None
    assert About.parse(about.model_dump(), "test") == about
    assert about.settings == LAZY["seismic"]
    assert building_command(Path("idx"), about.settings) == (
        "isthmus merge idx --set approximate.name=seismic --set approximate.postings=60 "
        "--set approximate.query_terms=1"
    )
