"""A sparse matrix of scipy, terms by documents, multiplied with the query."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse
from benchmarks.sparse_search.system import Effort, System
from benchmarks.sparse_search.systems.plain import top


class Measured(System):
    """The transposed matrix in memory."""

    def build(self) -> None:
        """Transposes the vectors."""
        self.index.mkdir(parents=True)
        matrix = self.documents.T.tocsr()
        scipy.sparse.save_npz(self.index / "matrix.npz", matrix, compressed=False)

    def open(self) -> None:
        """Reads the matrix."""
        self._matrix = scipy.sparse.load_npz(self.index / "matrix.npz")
        self._asked = [self.queries[number] for number in range(self.queries.shape[0])]

    def search(self, number: int, depth: int, effort: Effort) -> Any:
        """Rows and scores."""
        found = (self._asked[number] @ self._matrix).tocsr()
        places, scores = top(found.data, depth)
        return found.indices[places], scores

    def rows(self, found: Any) -> np.ndarray:
        """The first of the two."""
        return np.asarray(found[0])
