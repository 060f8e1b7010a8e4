"""A plain compiled index in the style of the SPLADE authors.

One loop per posting list, 32-bit document numbers and float32 weights, into an array of scores as
long as the collection, then argpartition.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from benchmarks.sparse_search.system import System

_ARRAYS = ("starts", "rows", "weights")


class Measured(System):
    """Posting lists in memory."""

    def build(self) -> None:
        """Transposes the vectors."""
        self.index.mkdir(parents=True)
        columns = self.documents.tocsc()
        columns.sort_indices()
        arrays = (columns.indptr.astype(np.int64), columns.indices, columns.data)
        np.save(self.index / "count.npy", self.documents.shape[0])
        for name, array in zip(_ARRAYS, arrays, strict=True):
            np.save(self.index / f"{name}.npy", array)

    def open(self) -> None:
        """Reads the lists."""
        self._count = int(np.load(self.index / "count.npy"))
        self._lists = tuple(np.load(self.index / f"{name}.npy") for name in _ARRAYS)
        self._asked = [self.queries[number] for number in range(self.queries.shape[0])]

    def search(self, number: int, depth: int) -> Any:
        """Rows and scores."""
        query = self._asked[number]
        starts, rows, weights = self._lists
        scores = _scores(starts, rows, weights, self._count, query.indices, query.data)
        return top(scores, depth)

    def rows(self, found: Any) -> np.ndarray:
        """The first of the two."""
        return np.asarray(found[0])


@numba.njit(nogil=True)
def _scores(
    starts: np.ndarray,
    rows: np.ndarray,
    weights: np.ndarray,
    documents: int,
    terms: np.ndarray,
    query: np.ndarray,
) -> np.ndarray:
    scores = np.zeros(documents, np.float32)
    for i in range(len(terms)):
        for place in range(starts[terms[i]], starts[terms[i] + 1]):
            scores[rows[place]] += query[i] * weights[place]
    return scores


def top(scores: np.ndarray, depth: int) -> tuple[np.ndarray, np.ndarray]:
    """The places of the highest scores, best first, and those scores."""
    depth = min(depth, len(scores))
    found = np.argpartition(scores, len(scores) - depth)[len(scores) - depth :]
    found = found[np.argsort(-scores[found])]
    return found, scores[found]
