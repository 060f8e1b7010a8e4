"""An order of documents in which neighbours resemble each other, so that bounds are tight.

Documents are first put into groups that a sample of them forms (k-means on their strongest terms).
Halving alone would part documents that belong together at each of its first turns, where a half has
so many subjects that its terms say little: the larger the collection, the more. Groups are halved
to bring similar ones near each other, and documents near each other once more.
"""

from __future__ import annotations

from concurrent.futures import Executor, ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
import scipy.sparse

from isthmus.indexes.sparse import kernels
from isthmus.indexes.sparse.lists import Array

_TERMS = 32  # of a document, and of a group
_GROUP = 128  # documents, or so
_SAMPLED = 8  # one in so many
_TURNS = 3
_ROUNDS = 12
HALVED = 2**15  # documents at a time
_ROWS = 2**14


def similar_first(
    row_starts: npt.NDArray[np.int64], terms: Array, weights: Array, vocabulary: int, threads: int
) -> npt.NDArray[np.int64]:
    """All rows, similar ones near each other; the same whatever the number of threads."""
    rows = len(row_starts) - 1
    kind = np.uint16 if vocabulary < 2**16 else np.uint32
    strong = np.empty((rows, _TERMS), dtype=kind)
    logs = np.log2(np.arange(1, rows + 2)).astype(np.float32)
    with ThreadPoolExecutor(threads) as pool:

        def fill(first: int) -> None:
            part = strong[first : first + _ROWS]
            kernels.strongest(row_starts, terms, weights, first, part, vocabulary)

        list(pool.map(fill, range(0, rows, _ROWS)))
        places: Array = np.zeros(rows, dtype=np.int64)
        if rows > HALVED:
            groups, middles = _grouped(strong, vocabulary, pool)
            in_turn = np.lexsort((middles[:, 1], middles[:, 0]))
            _halve(in_turn, 0, len(middles), middles, vocabulary, logs)
            places = np.argsort(in_turn)[groups]
        order = np.lexsort((strong[:, 1], strong[:, 0], places))

        def halve(first: int) -> None:
            _halve(order, first, min(first + HALVED, rows), strong, vocabulary, logs)

        list(pool.map(halve, range(0, rows, HALVED)))
    return order


def _halve(order: Array, low: int, high: int, strong: Array, vocabulary: int, logs: Array) -> None:
    counts = np.zeros((2, vocabulary + 1), dtype=np.int32)
    kernels.halve_all(order, low, high, strong, counts, logs, _ROUNDS)


def _grouped(strong: Array, vocabulary: int, pool: Executor) -> tuple[Array, Array]:
    """The group of each row, and the strongest terms of each group."""
    rows = len(strong)
    generator = np.random.default_rng(0)
    drawn = generator.choice(rows, rows // _SAMPLED, replace=False)
    sample = strong[np.sort(drawn)]
    frequencies = np.bincount(sample.ravel(), minlength=vocabulary + 1)
    worth = np.rint(16 * np.log2(len(sample) / np.maximum(frequencies, 1))).astype(np.int32)
    worth[vocabulary] = 0  # no term
    middles = strong[np.sort(drawn[: rows // _GROUP])]
    for _ in range(_TURNS):
        groups = _nearest(sample, middles, worth, pool)
        # How often a group has a term, summed up by the conversion.
        pairs = np.repeat(groups, _TERMS), sample.ravel()
        shape = len(middles), vocabulary + 1
        counts = scipy.sparse.csr_matrix((np.ones(sample.size, np.int32), pairs), shape)
        weights = counts.data * worth[counts.indices]
        kernels.strongest(
            counts.indptr.astype(np.int64), counts.indices, weights, 0, middles, vocabulary
        )
    return _nearest(strong, middles, worth, pool), middles


def _nearest(strong: Array, middles: Array, worth: Array, pool: Executor) -> Array:
    """Per row the group whose terms it shares, rare ones above all."""
    by_term = np.argsort(middles.ravel(), kind="stable")
    lists = np.searchsorted(middles.ravel()[by_term], np.arange(len(worth) + 1))
    groups = (by_term // _TERMS).astype(np.int32)
    found = np.empty(len(strong), dtype=np.int32)

    def fill(first: int) -> None:
        part = strong[first : first + _ROWS]
        kernels.nearest(part, lists, groups, worth, len(middles), found[first : first + _ROWS])

    list(pool.map(fill, range(0, len(strong), _ROWS)))
    return found
