"""An embedded qdrant shard (qdrant-edge-py): one segment, its index in memory.

Searching holds Python's lock, so that more threads do not make it faster.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import qdrant_edge as q
from benchmarks.sparse_search.system import Effort, System

_POINTS = 2_000


class Measured(System):
    """One sparse vector per point."""

    def build(self) -> None:
        """Adds the points and waits for the optimiser."""
        self.index.mkdir(parents=True)
        shard = q.EdgeShard.create(str(self.index), _config())
        starts, terms, weights = (
            self.documents.indptr, self.documents.indices, self.documents.data,
        )  # fmt: skip
        for first in range(0, self.documents.shape[0], _POINTS):
            points = []
            for row in range(first, min(first + _POINTS, self.documents.shape[0])):
                inner = slice(starts[row], starts[row + 1])
                vector = q.SparseVector(terms[inner].tolist(), weights[inner].tolist())
                points.append(q.Point(row, {"terms": vector}))
            shard.update(q.UpdateOperation.upsert_points(points))
        shard.optimize()
        shard.flush()
        shard.close()

    def open(self) -> None:
        """Loads the shard."""
        self._shard = q.EdgeShard.load(str(self.index), _config())
        self._asked = [
            q.Query.Nearest(q.SparseVector(row.indices.tolist(), row.data.tolist()), using="terms")
            for row in self.queries
        ]

    def search(self, number: int, depth: int, effort: Effort) -> Any:
        """Points."""
        return self._shard.search(q.SearchRequest(self._asked[number], depth))

    def rows(self, found: Any) -> np.ndarray:
        """Their ids."""
        return np.array([point.id for point in found], dtype=np.int64)


def _config() -> q.EdgeConfig:
    return q.EdgeConfig(
        sparse_vectors={"terms": q.EdgeSparseVectorParams()},
        optimizers=q.EdgeOptimizersConfig(default_segment_number=1, indexing_threshold=1),
        wal_enabled=False,
    )
