"""The order of documents in an inverted index: all of them, and those alike near each other."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse

from isthmus.indexes.inverted import document_order as ordering
from isthmus.indexes.inverted import kernels
from isthmus.indexes.inverted.lists import CELL

SUBJECTS, ROWS, TERMS = 100, 25_600, 1_000


@pytest.fixture
def subjects() -> np.ndarray:
    return np.random.default_rng(0).integers(0, SUBJECTS, ROWS)


@pytest.fixture
def vectors(subjects: np.ndarray) -> scipy.sparse.csr_matrix:
    """Subjects have nothing to do with each other, and every term is in many of them."""
    generator = np.random.default_rng(1)
    words = generator.integers(0, TERMS, (SUBJECTS, 60))
    terms = generator.integers(0, TERMS, (ROWS, 40))
    terms[:, :20] = words[subjects[:, None], generator.integers(0, 60, (ROWS, 20))]
    weights = generator.gamma(2, 20, terms.shape) + 1
    rows = np.repeat(np.arange(ROWS), terms.shape[1])
    shape = (ROWS, TERMS)
    return scipy.sparse.csr_matrix((weights.ravel(), (rows, terms.ravel())), shape).astype(
        np.uint16
    )


def order_of(
    vectors: scipy.sparse.csr_matrix, threads: int = 2, vocabulary: int = TERMS
) -> np.ndarray:
    starts = vectors.indptr.astype(np.int64)
    return ordering.similar_first(starts, vectors.indices, vectors.data, vocabulary, threads)


def subjects_per_cell(order: np.ndarray, subjects: np.ndarray) -> float:
    cells = subjects[order].reshape(-1, CELL)
    return float(np.mean([len(np.unique(cell)) for cell in cells]))


@pytest.mark.slow
def test_documents_of_a_subject_are_neighbours(
    monkeypatch: pytest.MonkeyPatch, vectors: scipy.sparse.csr_matrix, subjects: np.ndarray
) -> None:
    """By chance a cell has 28 subjects; halving all documents leaves six, grouping them two."""
    halved = subjects_per_cell(order_of(vectors), subjects)
    monkeypatch.setattr(ordering, "_HALVED", 1024)
    grouped = subjects_per_cell(order_of(vectors), subjects)
    assert grouped < 3
    assert grouped < halved / 2


@pytest.mark.slow
def test_every_document_has_a_place_whatever_the_threads(
    monkeypatch: pytest.MonkeyPatch, vectors: scipy.sparse.csr_matrix
) -> None:
    monkeypatch.setattr(ordering, "_HALVED", 1024)
    monkeypatch.setattr(ordering, "_ROWS", 1000)
    # Some documents have few terms, some none, and terms may need more than 16 bits.
    some = vectors[:3000].copy()
    rows = np.repeat(np.arange(3000), np.diff(some.indptr))
    some.data[(rows % 5 == 0) | (rows % 3 == 0) & (some.indices > 30)] = 0
    some.eliminate_zeros()
    order = order_of(some, threads=1)
    assert sorted(order) == list(range(3000))
    np.testing.assert_array_equal(order, order_of(some, threads=3))
    np.testing.assert_array_equal(order, order_of(some, vocabulary=70_000))


def test_the_nearest_group_shares_the_terms_of_most_worth() -> None:
    generator = np.random.default_rng(2)
    terms, groups = 50, 45
    strong = np.sort(generator.integers(0, terms + 1, (300, 6)), axis=1).astype(np.uint16)
    middles = generator.integers(0, terms, (groups, 6)).astype(np.uint16)
    worth = generator.integers(1, 4, terms + 1).astype(np.int32)
    held = scipy.sparse.csr_matrix(
        (np.ones(middles.size), (np.repeat(np.arange(groups), 6), middles.ravel())),
        (groups, terms + 1),
    ).toarray()
    expected = []
    for row in strong:
        shared = sum(
            (held[:, term] * worth[term] for term in row if term < terms), np.zeros(groups)
        )
        expected.append(int(np.argmax(shared)))
    by_term = np.argsort(middles.ravel(), kind="stable")
    lists = np.searchsorted(middles.ravel()[by_term], np.arange(terms + 2))
    found = np.empty(len(strong), np.int32)
    kernels.nearest(strong, lists, (by_term // 6).astype(np.int32), worth, groups, found)
    assert found.tolist() == expected
