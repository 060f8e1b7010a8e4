"""Vectors of numbers, one per document, searched by inner products with all of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from isthmus.indexes.approximation import About, ApproximationSettings, Backend
from isthmus.indexes.arrays import mapped
from isthmus.indexes.index import Index
from isthmus.indexes.kinds._base import Builder, IndexKind
from isthmus.indexes.manifest import Description, Manifest

_ROWS = 2**12


class Dense(IndexKind):
    """Files: vectors.npy, and the vectors in eight bits (codes.npy, code_sizes.npy) if chosen."""

    title = "a dense index"
    needed = ("dimension", "dtype", "largest_norm")
    field = "dense"
    backends = ("numpy", "faiss", "hnsw", "ivf")

    def examine(self, folder: Path, manifest: Manifest) -> None:
        """Raises if the files of an index in one piece do not fit each other."""
        from isthmus.indexes.dense.structure import examine

        examine(folder, manifest)

    def builder(self, folder: Path, description: Description) -> Builder:
        """A builder of an index in this folder."""
        from isthmus.indexes.dense.builder import DenseBuilder

        return DenseBuilder(folder, description)

    def open(self, folder: Path, backend: Backend) -> Index:
        """The index in one piece in this folder."""
        from isthmus.indexes.dense.index import DenseIndex

        return DenseIndex.open(folder, backend)

    def open_segments(self, folder: Path, backend: Backend) -> Index:
        """The index in segments in this folder."""
        from isthmus.indexes.segments.index import SegmentedIndex

        return SegmentedIndex.open(folder, backend)

    def searched_vectors(self, folder: Path, manifest: Manifest) -> Iterator[Any]:
        """All vectors of an index in one piece, in float32, some rows at a time."""
        from isthmus.indexes.dense.index import VECTORS

        vectors = mapped(folder / VECTORS, folder)
        for first in range(0, len(vectors), _ROWS):
            yield vectors[first : first + _ROWS].astype(np.float32)

    def check_library(self, needed_for: str) -> None:
        """Raises if faiss is not installed."""
        from isthmus.indexes.dense.scan import import_faiss

        import_faiss(needed_for)

    def approximate(self, folder: Path, settings: ApproximationSettings, queries: Any) -> About:
        """Builds hnsw or ivf of the index in this folder, if needed, and measures it."""
        from isthmus.indexes.dense.faiss_builder import build_faiss

        return build_faiss(folder, settings, queries)
