"""Which vectors of a block may be among the best: found with rounded products and their bounds.

A scan errs on one side only: whatever it leaves out cannot be among the best, and what it lets
through is scored exactly afterwards. So all scans lead to the same answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from isthmus.errors import needing
from isthmus.indexes.dense.codes import Codes, products, rounded

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]
_QUERIES_AT_ONCE = 128


class Scan(Protocol):
    """A block of rows at a time, for all queries."""

    def __call__(self, first: int, count: int, depth: int, floors: Doubles) -> Iterator[Rows]:
        """Rows among first, first + 1, … that may be among the `depth` best, query after query.

        `floors` are the exact scores a document must reach to enter at all.
        """


class BlasScan:
    """Float32 products of a whole block with many queries."""

    def __init__(
        self, vectors: npt.NDArray[np.floating[Any]], queries: Floats, largest_norm: float
    ) -> None:
        self._vectors = vectors
        self._queries = queries
        self._margins = float32_margins(queries, largest_norm)

    def __call__(self, first: int, count: int, depth: int, floors: Doubles) -> Iterator[Rows]:
        """Rows whose product lies above the cut less what rounding may have taken."""
        block = _block(self._vectors, first, count)
        for number, (floor, margin) in enumerate(zip(floors, self._margins, strict=True)):
            place = number % _QUERIES_AT_ONCE
            if place == 0:
                products = self._queries[number : number + _QUERIES_AT_ONCE] @ block.T
            cut = floor - margin
            if np.isinf(floor) and len(block) > depth:
                # `depth` documents exceed this product less one error: nothing below it less two.
                cut = _highest(products[place], depth) - 2 * margin
            yield np.flatnonzero(products[place] >= cut) + first


class FaissScan:
    """The search of IndexFlatIP on the memory-mapped block itself, without the index's copy."""

    def __init__(
        self, vectors: npt.NDArray[np.floating[Any]], queries: Floats, largest_norm: float
    ) -> None:
        self._faiss = import_faiss("backend=faiss")
        self._vectors = vectors
        self._queries = queries
        self._margins = float32_margins(queries, largest_norm)

    def __call__(self, first: int, count: int, depth: int, floors: Doubles) -> Iterator[Rows]:
        """Rows whose product lies above the cut less what rounding may have taken."""
        block = _block(self._vectors, first, count)
        inner_product = self._faiss.METRIC_INNER_PRODUCT
        # It may drop any of several equal scores, so it fetches on until the cut is passed.
        fetched = min(depth + 8, len(block))
        while True:
            scores, rows = self._faiss.knn(self._queries, block, fetched, metric=inner_product)
            cuts = floors - self._margins
            if fetched >= depth:
                cuts = np.maximum(cuts, scores[:, depth - 1] - 2 * self._margins)
            if fetched == len(block) or np.all(scores[:, -1] < cuts):
                break
            fetched = min(2 * fetched, len(block))
        for row, score, cut in zip(rows, scores, cuts, strict=True):
            yield row[score >= cut] + first


class CodeScan:
    """Products of vectors in eight bits with queries in twelve: a quarter of the memory is read.

    With d' the decoded vector and q' the rounded query, q·d = q'·d' + (q - q')·d' + q·(d - d').
    The first term is computed exactly, in integers; the others are bounded by the norms of the
    errors, which are known.
    """

    def __init__(self, codes: Codes, queries: Floats) -> None:
        self._codes = codes
        self._lengths = np.linalg.norm(queries.astype(np.float64), axis=1)
        self._asked, self._steps, self._errors = rounded(queries)

    def __call__(self, first: int, count: int, depth: int, floors: Doubles) -> Iterator[Rows]:
        """Rows that can reach the cut, which `depth` rows reach whatever their errors are."""
        rows = slice(first, first + count)
        steps, errors, norms = (np.asarray(part[rows], np.float64) for part in self._codes.sizes)
        tiny = self._asked.shape[1] * float(np.finfo(np.float32).tiny)
        found = products(self._codes.values[rows], self._asked)
        for number, (floor, length) in enumerate(zip(floors, self._lengths, strict=True)):
            middle = found[number] * (steps * self._steps[number])
            reach = errors * length + norms * self._errors[number]
            # What this very arithmetic rounds, and products that underflow.
            reach += 1e-12 * norms * length + tiny * (1 + steps)
            cut = floor
            if len(middle) > depth:
                cut = max(cut, _highest(middle - reach, depth))
            yield np.flatnonzero(middle + reach >= cut) + first


def float32_margins(queries: Floats, largest_norm: float) -> Doubles:
    """How far a float32 product can lie from the exact one, per query.

    n*u*|q|*|d| bounds the rounding of a sum of n products in any order (Higham, Accuracy and
    Stability, section 3.1); the smallest normal number covers products that underflow.
    """
    lengths = np.linalg.norm(queries.astype(np.float64), axis=1)
    unit, tiny = float(np.finfo(np.float32).eps), float(np.finfo(np.float32).tiny)
    margins: Doubles = queries.shape[1] * (unit * lengths * largest_norm + tiny)
    return margins


def import_faiss(needed_for: str) -> Any:
    """The package faiss, or what to install."""
    with needing("faiss", extra="ann", needed_for=needed_for):
        import faiss
    return faiss


def _block(vectors: npt.NDArray[np.floating[Any]], first: int, count: int) -> Floats:
    return np.ascontiguousarray(vectors[first : first + count], dtype=np.float32)


def _highest(values: npt.NDArray[np.floating[Any]], place: int) -> float:
    return float(np.partition(values, len(values) - place)[len(values) - place])
