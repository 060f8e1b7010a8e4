"""The vectors that all systems get: made up, or real ones, written in parts.

Made-up vectors: terms as frequent as Zipf's law has it, 100 to 250 a document, over a vocabulary of
30,000; six in ten from the topic of the document, which it shares with some others; weights favour
rare terms. A query is 20 to 60 of a document's terms, with noise. Without topics there is nothing
to order documents by, which is the worst case.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from isthmus.indexes.arrays import GrowingArray

ROWS = 20_000  # that are in memory at a time
_POSTINGS = 2**24
_VOCABULARY = 30_000
_TOPIC_TERMS = 400
Matrix = Any  # scipy's types say little


def read_documents(folder: Path) -> Matrix:
    """A row per document, in place on the disk: whole numbers in float32."""
    starts, terms, weights = (
        np.load(folder / f"{name}.npy", mmap_mode="r") for name in ("starts", "terms", "weights")
    )
    width = int(np.load(folder / "width.npy"))
    return scipy.sparse.csr_matrix((weights, terms, starts), shape=(len(starts) - 1, width))


def read_queries(folder: Path) -> Matrix:
    """A row per query: whole numbers in float32."""
    return scipy.sparse.load_npz(folder / "queries.npz")


def frequencies(documents: Matrix) -> np.ndarray:
    """How many documents each term is in."""
    counts = np.zeros(documents.shape[1], np.int64)
    for first in range(0, documents.nnz, _POSTINGS):
        part = documents.indices[first : first + _POSTINGS]
        counts += np.bincount(part, minlength=len(counts))
    return counts


def write_made_up(folder: Path, documents: int, queries: int, per_topic: int) -> None:
    """Makes vectors up; `per_topic` documents share a topic, 0: none."""
    generator = np.random.default_rng(0)
    chances = 1 / (np.arange(_VOCABULARY) + 11.0)
    zipf = np.cumsum(chances / chances.sum())
    _write(folder, _made_up(documents, per_topic, chances, generator), _VOCABULARY)
    asked = _queries(read_documents(folder), queries, zipf, generator)
    scipy.sparse.save_npz(folder / "queries.npz", asked)


def write_real(folder: Path, source: Path, documents: int, queries: int) -> None:
    """Writes the first documents and queries of a folder."""
    real, asked = (
        scipy.sparse.csr_matrix(scipy.sparse.load_npz(source / name), dtype=np.float32)
        for name in ("documents.npz", "queries.npz")
    )
    real.sort_indices()
    asked.sort_indices()
    blocks = (real[first : min(first + ROWS, documents)] for first in range(0, documents, ROWS))
    _write(folder, blocks, real.shape[1])
    scipy.sparse.save_npz(folder / "queries.npz", asked[:queries])


def _write(folder: Path, blocks: Iterable[Matrix], width: int) -> None:
    lengths = [np.zeros(1, np.int64)]
    with (
        GrowingArray(folder / "terms.npy", np.int32) as terms,
        GrowingArray(folder / "weights.npy", np.float32) as weights,
    ):
        for block in blocks:
            terms.append(block.indices.astype(np.int32))
            weights.append(block.data.astype(np.float32))
            lengths.append(np.diff(block.indptr))
    starts = np.cumsum(np.concatenate(lengths), dtype=np.int64)
    assert starts[-1] < 2**31, "scipy would copy all terms into 64 bits"
    np.save(folder / "starts.npy", starts.astype(np.int32))
    np.save(folder / "width.npy", width)


def _matrix_of(
    numbers: np.ndarray, terms: np.ndarray, weights: np.ndarray, shape: tuple[int, int]
) -> Matrix:
    """Rows of these postings; a term that comes twice counts once, one without weight not."""
    once, places = np.unique(numbers * shape[1] + terms, return_index=True)
    values = weights[places].astype(np.float32)
    pairs = np.divmod(once[values > 0], shape[1])
    return scipy.sparse.csr_matrix((values[values > 0], pairs), shape=shape)


def _made_up(
    documents: int, per_topic: int, chances: np.ndarray, generator: np.random.Generator
) -> Iterator[Matrix]:
    rarity = 1 - np.log(chances / chances[-1]) / np.log(chances[0] / chances[-1])
    zipf = np.cumsum(chances / chances.sum())
    topics = max(20, documents // per_topic) if per_topic else 1
    drawn = np.searchsorted(zipf, generator.random((topics, _TOPIC_TERMS)) ** 0.7)
    topic_terms = np.minimum(drawn, _VOCABULARY - 1)
    inside = np.cumsum(1 / (np.arange(_TOPIC_TERMS) + 3.0))
    for first in range(0, documents, ROWS):
        rows = min(ROWS, documents - first)
        # Some terms are drawn twice and count once.
        lengths = (np.clip(generator.normal(175, 35, rows), 100, 250) * 1.25).astype(int)
        numbers = np.repeat(np.arange(rows), lengths)
        terms = np.searchsorted(zipf, generator.random(len(numbers)))
        topical = generator.random(len(numbers)) < (0.6 if per_topic else 0)
        topic = generator.integers(0, topics, rows)[numbers[topical]]
        which = np.searchsorted(inside / inside[-1], generator.random(len(topic)))
        terms[topical] = topic_terms[topic, which]
        weights = generator.gamma(2.0, 0.22, len(numbers)) * (0.4 + 0.8 * rarity[terms])
        weights *= np.where(topical, 1.3, 0.8)
        whole = np.floor(100 * np.minimum(weights, 3.4))
        yield _matrix_of(numbers, terms, whole, (rows, _VOCABULARY))


def _queries(
    documents: Matrix, count: int, zipf: np.ndarray, generator: np.random.Generator
) -> Matrix:
    terms: list[np.ndarray] = []
    weights: list[np.ndarray] = []
    for row in generator.integers(0, documents.shape[0], count):
        inner = slice(documents.indptr[row], documents.indptr[row + 1])
        known, strength = documents.indices[inner], documents.data[inner]
        length = int(generator.integers(20, 61))
        own = min(int(0.8 * length), len(known))
        chosen = generator.choice(len(known), own, replace=False, p=strength / strength.sum())
        noise = np.minimum(np.searchsorted(zipf, generator.random(length - own)), _VOCABULARY - 1)
        noise = np.setdiff1d(noise, known[chosen])
        terms.append(np.concatenate([known[chosen], noise]))
        drawn = (
            strength[chosen] * generator.gamma(4, 0.25, own),
            generator.gamma(2, 15, len(noise)),
        )
        weights.append(np.clip(np.floor(np.concatenate(drawn)), 1, 340))
    return _matrix(terms, weights)


def _matrix(terms: Sequence[np.ndarray], weights: Sequence[np.ndarray]) -> Matrix:
    starts = np.cumsum([0, *map(len, terms)])
    data = (np.concatenate(weights).astype(np.float32), np.concatenate(terms), starts)
    matrix = scipy.sparse.csr_matrix(data, shape=(len(terms), _VOCABULARY))
    matrix.sort_indices()
    return matrix
