"""What goes into an index comes out of it again: alone, in pairs, and in segments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from tests.factories import described

from isthmus.errors import InputError, MismatchError
from isthmus.indexes import contents
from isthmus.indexes.contents import Contents
from isthmus.indexes.dense.builder import DenseBuilder
from isthmus.indexes.inverted.builder import InvertedBuilder
from isthmus.indexes.manifest import EncoderOrigin, InvertedSettings
from isthmus.indexes.segments.writer import IndexWriter
from isthmus.indexes.verification import read_manifest
from isthmus.records import Document

SIZE, DIMENSION = 40, 4


def documents_of(count: int) -> list[Document]:
    return [Document(f"d{(7 * n) % count:03d}", f"text {n}", f"title {n}") for n in range(count)]


def some_weights(count: int, seed: int = 0) -> scipy.sparse.csr_matrix:
    """Documents of no terms, of many, and weights that fit one byte, two, or a fraction of one."""
    generator = np.random.default_rng(seed)
    matrix = scipy.sparse.random(count, SIZE, density=0.2, format="csr", rng=generator)
    matrix.data = generator.choice([0.004, 0.29, 1.0, 2.551, 6.5, 300.0], matrix.nnz)
    return matrix.astype(np.float32)


def build(folder: Path, kind: str, documents: list[Document], vectors: Any, **changes: Any) -> Path:
    description = described(
        "dense" if kind == "dense" else "inverted",
        encoder=EncoderOrigin(name=kind, fingerprint=f"{kind}-1"),
        **{"dimension": vectors.shape[1], **changes},
    )
    small = DenseBuilder if kind == "dense" else InvertedBuilder
    with small(folder, description) as builder:
        builder.add(documents, vectors)
        return builder.finish({})


def read(*folders: Path) -> tuple[Contents, dict[str, tuple[Document, dict[str, Any]]]]:
    """By id: the document and its vectors, weights as dicts."""
    held = Contents(folders)
    found = {}
    for batch in held.batches():
        columns = {
            field: [dict(zip(row.indices.tolist(), row.data.tolist(), strict=True)) for row in rows]
            if field == "sparse"
            else rows.tolist()
            for field, rows in batch.vectors.items()
        }
        for place, document in enumerate(batch.documents):
            assert document.id not in found
            vectors = {field: column[place] for field, column in columns.items()}
            found[document.id] = (document, vectors)
    assert len(found) == len(held)
    return held, found


def expected_weights(row: Any, settings: InvertedSettings) -> dict[int, float]:
    values = dict(zip(row.indices.tolist(), row.data.astype(np.float64).tolist(), strict=True))
    if settings.terms is not None:
        strongest = sorted(values, key=lambda term: (-values[term], term))[: settings.terms]
        values = {term: values[term] for term in strongest}
    if settings.weights == "integer":
        rounded = np.floor if settings.rounding == "floor" else np.rint
        values = {term: int(rounded(value * settings.scale)) for term, value in values.items()}
    return {term: value for term, value in values.items() if value > 0}


@pytest.mark.parametrize(
    "settings",
    [{}, {"terms": 3}, {"weights": "float"}, {"rounding": "round", "scale": 7.0}],
    ids=str,
)
def test_weights_as_they_are_searched(
    tmp_path: Path, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contents, "ROWS", 16)
    kept = InvertedSettings.parse(settings, "test")
    documents, vectors = documents_of(100), some_weights(100)
    assert min(np.diff(vectors.indptr)) < max(np.diff(vectors.indptr)) - 5
    folder = build(tmp_path / "index", "sparse", documents, vectors, inverted=kept)
    held, found = read(folder)
    for document, row in zip(documents, vectors, strict=True):
        back, weights = found[document.id]
        assert back == document
        assert weights["sparse"] == pytest.approx(expected_weights(row, kept), rel=1e-7)
    assert held.dimensions == {"sparse": SIZE}
    assert held.encoders == {"sparse": "sparse-1"}


def test_a_pair_meets_by_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The two indexes hold the documents in different orders, and one without texts."""
    monkeypatch.setattr(contents, "ROWS", 7)
    documents, weights = documents_of(50), some_weights(50)
    vectors = np.random.default_rng(1).standard_normal((50, DIMENSION)).astype(np.float32)
    sparse = build(tmp_path / "sparse", "sparse", documents[::-1], weights[::-1], texts=False)
    dense = build(tmp_path / "dense", "dense", documents, vectors)
    for pair in ((sparse, dense), (dense, sparse)):
        held, found = read(*pair)
        assert held.texts
        for document, vector, row in zip(documents, vectors, weights, strict=True):
            back, both = found[document.id]
            assert back == document
            assert both["dense"] == vector.tolist()
            assert both["sparse"] == expected_weights(row, InvertedSettings())


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_segments_without_what_was_deleted(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contents, "ROWS", 8)
    monkeypatch.setattr("isthmus.indexes.segments.writer.to_merge", lambda *_: None)
    vectors: Any = some_weights(60, seed=3)
    if kind == "dense":
        vectors = np.random.default_rng(1).standard_normal((60, DIMENSION)).astype(np.float32)
    documents = documents_of(60)
    folder = build(tmp_path / "index", kind, documents[:40], vectors[:40])
    writer = IndexWriter(folder)
    writer.add(documents[40:], vectors[40:])
    writer.delete([document.id for document in documents[10:50]])
    writer.commit()
    changed = Document(documents[0].id, "new text", "new title")
    writer.add([changed], vectors[1:2])
    writer.commit()
    writer.close()
    segments = read_manifest(folder).segments
    assert segments is not None
    assert [segment.deleted is None for segment in segments] == [False, False, True]
    _, found = read(folder)
    living = [*documents[1:10], *documents[50:], changed]
    rows = [*range(1, 10), *range(50, 60), 1]
    assert set(found) == {document.id for document in living}
    for document, row in zip(living, rows, strict=True):
        back, stored = found[document.id]
        assert back == document
        if kind == "dense":
            assert stored["dense"] == vectors[row].tolist()
        else:
            assert stored["sparse"] == expected_weights(vectors[row], InvertedSettings())
    if kind == "dense":  # found by id, in whichever segment it lives
        other = build(tmp_path / "other", "sparse", living, some_weights(20))
        _, both = read(other, folder)
        for document, row in zip(living, rows, strict=True):
            assert both[document.id][1]["dense"] == vectors[row].tolist()
        stale = build(tmp_path / "stale", "sparse", [*living[1:], documents[10]], some_weights(20))
        with pytest.raises(MismatchError, match="cannot be exported together"):
            read(stale, folder)


def test_pairs_that_are_none(tmp_path: Path) -> None:
    documents, weights = documents_of(10), some_weights(10)
    vectors = np.ones((10, DIMENSION), dtype=np.float32)
    sparse = build(tmp_path / "sparse", "sparse", documents, weights)
    again = build(tmp_path / "again", "sparse", documents, weights)
    fewer = build(tmp_path / "fewer", "dense", documents[:9], vectors[:9])
    others = [Document(f"x{n}", "") for n in range(10)]
    strange = build(tmp_path / "strange", "dense", others, vectors)
    for wrong in (again, fewer, strange):
        with pytest.raises(MismatchError, match="cannot be exported together"):
            read(sparse, wrong)


def test_bm25_holds_no_vectors(build_bm25: Any, tmp_path: Path) -> None:
    build_bm25(documents_of(10))
    with pytest.raises(InputError, match="is a bm25 index") as caught:
        Contents([tmp_path / "bm25"])
    assert "its own BM25" in caught.value.fix
