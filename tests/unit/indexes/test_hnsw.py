"""A graph of vectors: measured, exact in its scores, complete where it meets too few."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from tests.factories import BM25, ENCODER, index_of

from isthmus.errors import InputError, MissingPackageError, SettingsError
from isthmus.indexes.index import Index
from isthmus.indexes.manifest import DenseField, DenseSettings, HnswSettings
from isthmus.indexes.writer import IndexWriter
from isthmus.records import Document, Ranking

pytest.importorskip("faiss", reason="the extra [ann] is not installed")
ROWS, DEPTH = 1200, 10
NAMES = [str(number) for number in range(20)]
LAZY = HnswSettings(neighbours=2, construction=2, effort=1, oversampling=1)
"""It misses much, so that one sees who answered."""
DOCUMENTS = [Document(f"d{row}", "") for row in range(ROWS + 4)]


@pytest.fixture(scope="module")
def vectors() -> np.ndarray:
    """Clusters, as vectors of texts form them; the last 20 are asked."""
    generator = np.random.default_rng(0)
    centres = generator.standard_normal((60, 16))
    chosen = centres[generator.integers(0, 60, ROWS + 20)]
    return (chosen + 0.4 * generator.standard_normal((ROWS + 20, 16))).astype(np.float32)


def make(folder: Path, vectors: np.ndarray, hnsw: HnswSettings) -> Path:
    settings = DenseSettings(hnsw=hnsw)
    field = DenseField(encoder=ENCODER, dimension=16, settings=settings)
    fields = {"bm25": BM25, "dense": field}
    return index_of(folder, DOCUMENTS[:ROWS], fields, {"dense": vectors[:ROWS]}).folder


@pytest.fixture
def lazy(tmp_path: Path, vectors: np.ndarray) -> Path:
    return make(tmp_path / "lazy", vectors, LAZY)


def search(
    folder: Path, asked: np.ndarray, graph: bool = True, depth: int = DEPTH
) -> list[Ranking]:
    return Index.open(folder, graph=graph).search("dense", asked, depth, NAMES[: len(asked)])


def test_recall_is_what_was_measured_and_scores_are_exact(
    tmp_path: Path, vectors: np.ndarray
) -> None:
    found = {}
    for settings in (LAZY, HnswSettings(effort=512)):
        folder = make(tmp_path / str(settings.effort), vectors, settings)
        (segment,) = Index.open(folder).manifest.segments
        recall = segment.fields["dense"].recall
        assert recall is not None
        assert list(recall) == ["10", "100"]
        found[settings.effort] = recall["10"]
        every, near = (search(folder, vectors[-20:], graph) for graph in (False, True))
        everything = search(folder, vectors[-20:], False, ROWS)
        for whole, ranking in zip(everything, near, strict=True):
            scores = {document: dict(whole)[document] for document in ranking.document_ids}
            assert ranking == Ranking.sorted(ranking.query_id, scores)
    assert found[1] < 0.9 < 0.99 < found[512]
    assert every == near


def test_within_an_index_that_changed(lazy: Path, vectors: np.ndarray) -> None:
    """What is added is found; of what is deleted nothing is, and others take its place."""
    asked = vectors[-20:]
    before = search(lazy, asked)
    assert before != search(lazy, asked, graph=False)
    gone = {one for ranking in search(lazy, asked[:5], depth=38) for one in ranking.document_ids}
    with IndexWriter(lazy) as writer:
        added = 9 * asked[:1].repeat(4, axis=0)
        writer.add(DOCUMENTS[ROWS:], DOCUMENTS[ROWS:], {"dense": added})
        writer.delete(gone)
        writer.commit()
    new = {one.id for one in DOCUMENTS[ROWS:]}
    for depth in (DEPTH, 150, ROWS):
        found = search(lazy, asked, depth=depth)
        assert new <= {*found[0].document_ids}
        for ranking in found:
            assert len(ranking) == min(depth, ROWS + 4 - len(gone))
            assert gone.isdisjoint(ranking.document_ids)
    with IndexWriter(lazy) as writer:
        writer.merge(everything=True)
        (segment,) = writer.manifest.segments
    assert segment.fields["dense"].recall is not None, "made again"
    assert new <= {*search(lazy, asked)[0].document_ids}


@pytest.mark.parametrize("share", [2, 40, 400])
def test_within_a_filter(lazy: Path, vectors: np.ndarray, share: int) -> None:
    index, exact = Index.open(lazy, graph=True), Index.open(lazy)
    allowed = {f"d{row}" for row in range(0, ROWS, share)}
    masks = index.masks_of(allowed)
    found = index.search("dense", vectors[-20:], DEPTH, NAMES, masks)
    assert all(allowed.issuperset(one.document_ids) for one in found)
    assert {len(one) for one in found} == {min(DEPTH, len(allowed))}
    if share > 32:  # few are all scored
        assert found == exact.search("dense", vectors[-20:], DEPTH, NAMES, masks)


def test_absent_or_damaged(
    lazy: Path, vectors: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = index_of(tmp_path / "words", DOCUMENTS[:9], {"bm25": BM25}).folder
    with pytest.raises(SettingsError, match="has no graph"):
        Index.open(words, graph=True)
    (file,) = lazy.rglob("*.faiss")
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(InputError, match=r"vectors\.faiss' is damaged"):
        Index.open(lazy, graph=True)
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(MissingPackageError):
        make(tmp_path / "other", vectors, LAZY)
