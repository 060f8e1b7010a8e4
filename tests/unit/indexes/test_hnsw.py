"""The graph beside a dense index: measured, exact in what it scores, kept with its segment."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.factories import described
from tests.index_bytes import verify

from isthmus.config.sealed_json import sealed
from isthmus.errors import InputError, MismatchError, MissingPackageError
from isthmus.indexes.dense.builder import DenseBuilder, build_hnsw
from isthmus.indexes.dense.hnsw import (
    About,
    HnswSettings,
    building_command,
    has_hnsw,
)
from isthmus.indexes.dense.index import DenseIndex
from isthmus.indexes.segments.index import open_index
from isthmus.indexes.segments.writer import IndexWriter
from isthmus.records import Document, Ranking

faiss = pytest.importorskip("faiss", reason="the extra [ann] is not installed")
ROWS = 400
LAZY = HnswSettings(neighbours=2, construction=2, effort=1, oversampling=1)
"""It misses much, so that one sees who answered."""


@pytest.fixture(autouse=True)
def quick_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("isthmus.config.output.environment", dict)


@pytest.fixture(scope="module")
def vectors() -> np.ndarray:
    """Clusters, as vectors of texts form them; the first 20 are asked."""
    generator = np.random.default_rng(0)
    centres = generator.standard_normal((60, 16))
    chosen = centres[generator.integers(0, 60, 2000)]
    return (chosen + 0.4 * generator.standard_normal((2000, 16))).astype(np.float32)


def documents(first: int, last: int) -> list[Document]:
    return [Document(f"d{row}", "") for row in range(first, last)]


def make(folder: Path, vectors: np.ndarray) -> Path:
    with DenseBuilder(folder, described(dimension=16)) as builder:
        builder.add(documents(0, len(vectors)), vectors)
        return builder.finish({})


@pytest.fixture
def folder(tmp_path: Path, vectors: np.ndarray) -> Path:
    return make(tmp_path / "index", vectors)


@pytest.fixture
def lazy(tmp_path: Path, vectors: np.ndarray) -> Path:
    """A small index with a graph beside it."""
    folder = make(tmp_path / "lazy", vectors[:ROWS])
    build(folder, LAZY)
    return folder


def build(folder: Path, settings: HnswSettings, asked: np.ndarray | None = None) -> About:
    return build_hnsw(folder, DenseIndex.open(folder), settings, asked)


def search(folder: Path, asked: np.ndarray, depth: int, hnsw: bool = True) -> list[Ranking]:
    names = [str(number) for number in range(len(asked))]
    return open_index(folder, hnsw).search(asked, depth, names)


def ask(folder: Path, asked: np.ndarray, depth: int = 10, hnsw: bool = True) -> list[tuple]:
    return [ranking.document_ids for ranking in search(folder, asked, depth, hnsw)]


def test_recall_is_what_was_measured(folder: Path, vectors: np.ndarray) -> None:
    about = build(folder, HnswSettings(neighbours=4, effort=16), vectors[:20])
    exact, found = (search(folder, vectors[:20], 10, hnsw) for hnsw in (False, True))
    shared = [
        len({*a.document_ids} & {*b.document_ids}) / 10 for a, b in zip(exact, found, strict=True)
    ]
    assert about.depths == [10, 1000]
    assert about.recall[0] == pytest.approx(np.mean(shared))
    assert about.recall[0] > 0.5
    assert f"finds {about.recall[0]:.1%} of the 10 nearest" in about.summary()
    assert f"{about.recall[1]:.1%} of the 1,000 nearest" in about.summary()
    everything = search(folder, vectors[:20], len(vectors), hnsw=False)
    for whole, ranking in zip(everything, found, strict=True):
        scores = {document: dict(whole)[document] for document in ranking.document_ids}
        assert ranking == Ranking.sorted(ranking.query_id, scores)
    verify(folder)  # the index itself is as it was


def test_more_effort_finds_more(folder: Path, vectors: np.ndarray) -> None:
    little = build(folder, LAZY, vectors[:20]).recall[0]
    much = build(folder, HnswSettings(effort=512), vectors[:20]).recall[0]
    assert little < much
    assert much > 0.99


def test_the_same_is_not_built_again(folder: Path, vectors: np.ndarray) -> None:
    file = folder / "hnsw" / "vectors.faiss"
    build(folder, HnswSettings(), vectors[:20])
    before = file.stat().st_mtime_ns
    build(folder, HnswSettings(), vectors[:20])
    assert file.stat().st_mtime_ns == before
    build(folder, HnswSettings(neighbours=4), vectors[:20])
    assert file.stat().st_mtime_ns > before


def test_filters_are_exact(folder: Path, vectors: np.ndarray) -> None:
    build(folder, HnswSettings(), vectors[:20])
    among = [f"d{row}" for row in range(0, 2000, 97)]
    names = [str(number) for number in range(20)]
    expected = DenseIndex.open(folder).search(vectors[:20], 5, names, among=among)
    assert DenseIndex.open(folder, hnsw=True).search(vectors[:20], 5, names, among) == expected


def test_absent_or_of_other_vectors(
    folder: Path, vectors: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match="has no hnsw graph") as caught:
        DenseIndex.open(folder, hnsw=True)
    assert f"isthmus sync {folder} DOCUMENTS --compact --set hnsw=true" in caught.value.fix
    build(folder, HnswSettings(), vectors[:20])
    file = folder / "hnsw" / "about.json"
    file.write_text(json.dumps(sealed(json.loads(file.read_text()) | {"made_of": "others"})))
    with pytest.raises(MismatchError, match="built from another index"):
        DenseIndex.open(folder, hnsw=True)
    shutil.rmtree(folder / "hnsw")
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(MissingPackageError) as missing:
        build(folder, HnswSettings(), vectors[:20])
    assert missing.value.fix == "pip install 'isthmus[ann]'"


def test_one_that_is_damaged_is_refused_and_built_again(lazy: Path) -> None:
    file = lazy / "hnsw" / "vectors.faiss"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(InputError, match=r"vectors\.faiss' is damaged") as caught:
        open_index(lazy, hnsw=True)
    assert building_command(lazy, LAZY) in caught.value.fix
    build(lazy, LAZY)
    assert len(open_index(lazy, hnsw=True)) == ROWS


def test_what_is_added_is_found_and_the_rest_still_approximate(
    lazy: Path, vectors: np.ndarray
) -> None:
    asked = vectors[-30:]
    before = ask(lazy, asked)
    assert before != ask(lazy, asked, hnsw=False)
    added = 9 * asked[:1].repeat(4, axis=0)
    with IndexWriter(lazy) as writer:
        writer.add(documents(ROWS, ROWS + 4), added)
        writer.commit()
    new = {document.id for document in documents(ROWS, ROWS + 4)}
    assert new <= {*ask(lazy, asked)[0]}
    found = ask(lazy, asked)
    old = [tuple(document for document in ids if document not in new) for ids in found]
    assert old == [b[: len(o)] for b, o in zip(before, old, strict=True)], "as before"
    everything = ask(lazy, asked, ROWS + 4, hnsw=False)
    for ranking, whole in zip(found, everything, strict=True):
        places = [whole.index(document) for document in ranking]
        assert places == sorted(places), "scores as exact search has them"
    assert not has_hnsw(lazy), "it lies with its segment"


def test_what_is_deleted_is_not_found_and_others_take_its_place(
    lazy: Path, vectors: np.ndarray
) -> None:
    asked = vectors[-5:]
    gone = {one for ids in ask(lazy, asked, 38) for one in ids}  # all that lies near the queries
    assert 38 < len(gone) < ROWS / 2
    with IndexWriter(lazy) as writer:
        writer.delete(gone)
        writer.commit()
    for depth in (10, 150):
        for ids in ask(lazy, asked, depth):
            assert len(ids) == depth
            assert gone.isdisjoint(ids)
    among = [*list(gone)[:3], "d1", "d2", "d3"]
    (few,) = open_index(lazy, hnsw=True).search(asked[:1], 10, ["q"], among=among)
    assert {*few.document_ids} == {"d1", "d2", "d3"} - gone
