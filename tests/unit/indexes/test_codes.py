"""Vectors in eight bits: what is scanned is small, what is answered is exact."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from isthmus.collections import open_corpus
from isthmus.indexes.dense.builder import DenseBuilder
from isthmus.indexes.dense.codes import Codes, products, rounded, write_codes
from isthmus.indexes.dense.index import DenseIndex
from isthmus.indexes.dense.scan import CodeScan
from isthmus.indexes.manifest import Description
from isthmus.records import Document


@pytest.fixture
def real_vectors(shared_data: Path) -> np.ndarray:
    """Medline by latent semantic analysis: unit vectors, clustered as texts are."""
    from scipy.sparse import csr_matrix
    from scipy.sparse.linalg import svds

    documents = open_corpus(f"beir:{shared_data / 'collections' / 'medline'}").documents()
    vocabulary: dict[str, int] = {}
    rows = [[vocabulary.setdefault(w, len(vocabulary)) for w in d.text.split()] for d in documents]
    starts = np.cumsum([0, *map(len, rows)])
    counts = csr_matrix(
        (np.ones(starts[-1]), np.concatenate(rows), starts), shape=(len(rows), len(vocabulary))
    )
    counts.sum_duplicates()
    left, strengths, _ = svds(counts.log1p(), 64, rng=np.random.default_rng(0))
    vectors = left * strengths
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return (vectors / np.maximum(lengths, 1e-9)).astype(np.float32)


def build(folder: Path, vectors: np.ndarray, description: Description, **changes: object) -> Path:
    changes = {"dimension": vectors.shape[1], **changes}
    with DenseBuilder(folder, description.model_copy(update=changes)) as builder:
        builder.add([Document(f"d{row}", "") for row in range(len(vectors))], vectors)
        return builder.finish({})


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_real_vectors_same_answer_as_float32(
    real_vectors: np.ndarray, tmp_path: Path, dense_description: Description, dtype: str
) -> None:
    vectors, queries = real_vectors, real_vectors[::25] * 3.7
    plain = build(tmp_path / "plain", vectors, dense_description, dtype=dtype)
    coded = build(tmp_path / "coded", vectors, dense_description, dtype=dtype, codes="int8")
    names = [str(number) for number in range(len(queries))]
    for depth in (1, 10, 100):
        for block_rows in (300, None):
            expected = DenseIndex.open(plain, block_rows=block_rows).search(queries, depth, names)
            index = DenseIndex.open(coded, block_rows=block_rows)
            assert index.search(queries, depth, names) == expected
            for number in (0, 7, 20):  # few are multiplied in another way than many
                few = slice(number, number + 1)
                assert index.search(queries[few], depth, names[few]) == expected[few]
    stored = (coded / "codes.npy").stat().st_size
    assert stored < 0.27 * real_vectors.nbytes


def test_few_are_scored_twice(real_vectors: np.ndarray, tmp_path: Path) -> None:
    """A bound that lets everything through would be exact too, and useless."""
    write_codes(real_vectors, tmp_path)
    for queries in (real_vectors[::25], real_vectors[::50]):
        scan = CodeScan(Codes.open(tmp_path), queries)
        floors = np.full(len(queries), -np.inf)
        near = [len(rows) for rows in scan(0, len(real_vectors), 10, floors)]
        assert 10 <= np.mean(near) < 30
    high = [len(rows) for rows in scan(0, len(real_vectors), 10, np.full(len(floors), 0.99))]
    assert np.mean(high) < np.mean(near)


def test_an_error_upwards_takes_no_place(tmp_path: Path, dense_description: Description) -> None:
    """The first vector's code promises more than the vector holds; the second one's is exact."""
    vectors = np.array([[1, 0.6 / 127], [0, 0.006]], dtype=np.float32)
    folder = build(tmp_path / "index", vectors, dense_description, codes="int8")
    (ranking,) = DenseIndex.open(folder).search(np.array([[0.0, 1.0]]), 1, ["q"])
    assert ranking.document_ids == ("d1",)


@pytest.mark.parametrize("dimension", [1, 7, 384, 6000])
def test_products_are_exact_integers(dimension: int, tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    # The largest numbers there are, so that a sum too wide for its type would show.
    vectors = np.where(generator.random((5, dimension)) < 0.5, 1.0, -1.0).astype(np.float32)
    write_codes(vectors, tmp_path)
    codes = Codes.open(tmp_path)
    whole, _, _ = rounded(np.concatenate([vectors, 3 * vectors]))
    expected = whole.astype(np.int64) @ codes.values.astype(np.int64).T
    assert np.array_equal(products(codes.values, whole), expected)


def test_vectors_of_zeros(tmp_path: Path, dense_description: Description) -> None:
    vectors = np.zeros((3, 4), dtype=np.float32)
    vectors[1, 2] = 1e-30
    folder = build(tmp_path / "index", vectors, dense_description, codes="int8")
    (ranking,) = DenseIndex.open(folder).search(np.ones((1, 4)), 2, ["q"])
    assert ranking.document_ids == ("d1", "d0")
    (ranking,) = DenseIndex.open(folder).search(np.zeros((1, 4)), 2, ["q"])
    assert ranking.document_ids == ("d0", "d1")
