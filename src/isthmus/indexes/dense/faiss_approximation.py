"""Approximate dense search through faiss: it finds candidates, exact inner products rank them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from isthmus.indexes.approximation import Approximation, ApproximationSettings
from isthmus.indexes.backends import usable_about
from isthmus.indexes.dense.scan import Floats, Rows, import_faiss
from isthmus.indexes.integrity import parsing
from isthmus.indexes.manifest import Manifest


class FaissApproximation:
    """A faiss index of the vectors, in eight bits each."""

    def __init__(self, index: Any, settings: ApproximationSettings) -> None:
        self._index = index
        self._settings = settings
        if settings.name == "hnsw":
            index.hnsw.efSearch = settings.effort
        else:
            index.nprobe = settings.effort

    @classmethod
    def open(cls, folder: Path, name: Approximation, manifest: Manifest) -> FaissApproximation:
        """The approximation of a dense index; one of other vectors is refused."""
        about = usable_about(folder, name, manifest)
        faiss = import_faiss(f"backend={name}")
        file = folder / name / about.file
        with parsing(file, folder):
            index = faiss.read_index(str(file))
        return cls(index, about.settings)

    def near(self, queries: Floats, depth: int) -> Iterator[Rows]:
        """Rows that are probably among the `depth` best, query after query."""
        count = min(depth * self._settings.oversampling, self._index.ntotal)
        if self._settings.name == "hnsw":  # which returns no more than it meets
            self._index.hnsw.efSearch = max(self._settings.effort, count)
        _, found = self._index.search(queries, count)
        for rows in found:
            yield np.sort(rows[rows >= 0]).astype(np.int64)
