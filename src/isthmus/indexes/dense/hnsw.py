"""HNSW: a graph of the vectors of a segment, which finds near ones without scoring all.

It may miss documents; those that it finds are ranked by exact inner products.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from isthmus.errors import needing
from isthmus.indexes.integrity import damaged, parsing
from isthmus.indexes.manifest import HnswSettings
from isthmus.progress import Bar

FILE = "vectors.faiss"
LEAST = 1000  # vectors of a segment: fewer are sooner scored than found
_QUERIES = 200  # that a graph is measured with
_DEPTHS = (10, 100)
_ROWS = 2**14  # added at a time
_TRAINING = 2**16  # vectors that the quantiser is fitted to, at most
Rows = npt.NDArray[np.int64]


class Graph:
    """A faiss index of the vectors, in eight bits each."""

    def __init__(self, index: Any, settings: HnswSettings) -> None:
        self._index = index
        self._settings = settings

    @classmethod
    def open(cls, folder: Path, settings: HnswSettings, rows: int, dimension: int) -> Graph:
        """The graph in the folder of a field; one of other vectors is refused."""
        faiss, file = import_faiss("hnsw"), folder / FILE
        with parsing(file, folder):
            index = faiss.read_index(str(file))
        if type(index) is not faiss.IndexHNSWSQ:
            raise damaged(file, f"it is a {type(index).__name__}", folder)
        if (index.ntotal, index.d) != (rows, dimension):
            raise damaged(file, f"it is of {index.ntotal:,} vectors of {index.d} numbers", folder)
        return cls(index, settings)

    @classmethod
    def build(
        cls, folder: Path, vectors: npt.NDArray[np.floating[Any]], settings: HnswSettings
    ) -> dict[str, float]:
        """Writes a graph next to vectors; the fraction of the nearest ones that it finds."""
        faiss = import_faiss("hnsw")
        index = faiss.IndexHNSWSQ(
            vectors.shape[1],
            faiss.ScalarQuantizer.QT_8bit,
            settings.neighbours,
            faiss.METRIC_INNER_PRODUCT,
        )
        index.hnsw.efConstruction = settings.construction
        step = max(1, len(vectors) // _TRAINING)
        index.train(np.ascontiguousarray(vectors[::step][:_TRAINING], dtype=np.float32))
        with Bar("building hnsw", len(vectors), "vectors") as bar:
            for start in range(0, len(vectors), _ROWS):
                block = np.ascontiguousarray(vectors[start : start + _ROWS], dtype=np.float32)
                index.add(block)
                bar.advance(len(block))
        faiss.write_index(index, str(folder / FILE))
        return cls(index, settings)._recall(vectors)

    def near(self, queries: npt.NDArray[np.float32], depth: int) -> Iterator[Rows]:
        """Rows that are probably among the `depth` best, query after query."""
        count = min(depth * self._settings.oversampling, self._index.ntotal)
        # It returns no more than it meets.
        self._index.hnsw.efSearch = max(self._settings.effort, count)
        _, found = self._index.search(queries, count)
        for rows in found:
            yield np.sort(rows[rows >= 0]).astype(np.int64)

    def _recall(self, vectors: npt.NDArray[np.floating[Any]]) -> dict[str, float]:
        """The fraction of the nearest vectors that is found, by how many are wanted."""
        chosen = np.linspace(0, len(vectors) - 1, _QUERIES).astype(np.int64)
        queries = np.ascontiguousarray(vectors[chosen], dtype=np.float32)
        deepest = min(max(_DEPTHS), len(vectors))
        best: npt.NDArray[Any] = np.empty((len(queries), 0))
        names: npt.NDArray[Any] = np.empty((len(queries), 0), dtype=np.int64)
        for start in range(0, len(vectors), _ROWS):
            products = queries @ vectors[start : start + _ROWS].astype(np.float32).T
            rows = np.broadcast_to(np.arange(start, start + products.shape[1]), products.shape)
            best, names = np.hstack([best, products]), np.hstack([names, rows])
            order = np.argsort(-best, axis=1, kind="stable")[:, :deepest]
            best, names = (np.take_along_axis(one, order, axis=1) for one in (best, names))
        found = {}
        for depth in dict.fromkeys(min(depth, deepest) for depth in _DEPTHS):
            met = [
                np.isin(right[:depth], rows).mean()
                for right, rows in zip(names, self.near(queries, depth), strict=True)
            ]
            found[str(depth)] = float(np.mean(met))
        return found


def import_faiss(needed_for: str) -> Any:
    """The package faiss, or what to install."""
    with needing("faiss", extra="ann", needed_for=needed_for):
        import faiss
    return faiss
