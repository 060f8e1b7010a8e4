"""Vectors of numbers, one per document, searched by inner products with all of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from isthmus.indexes.arrays import mapped
from isthmus.indexes.index import Index
from isthmus.indexes.kinds._base import Builder, IndexKind
from isthmus.indexes.manifest import Description, Manifest

_ROWS = 2**12


class Dense(IndexKind):
    """Files: vectors.npy."""

    title = "a dense index"
    needed = ("dimension", "dtype", "largest_norm")
    field = "dense"

    def examine(self, folder: Path, manifest: Manifest) -> None:
        """Raises if the files of an index in one piece do not fit each other."""
        from isthmus.indexes.dense.structure import examine

        examine(folder, manifest)

    def builder(self, folder: Path, description: Description) -> Builder:
        """A builder of an index in this folder."""
        from isthmus.indexes.dense.builder import DenseBuilder

        return DenseBuilder(folder, description)

    def open(self, folder: Path, hnsw: bool) -> Index:
        """The index in one piece in this folder."""
        from isthmus.indexes.dense.index import DenseIndex

        return DenseIndex.open(folder, hnsw)

    def open_segments(self, folder: Path, hnsw: bool) -> Index:
        """The index in segments in this folder."""
        from isthmus.indexes.segments.index import SegmentedIndex

        return SegmentedIndex.open(folder, hnsw)

    def searched_vectors(self, folder: Path, manifest: Manifest) -> Iterator[Any]:
        """All vectors of an index in one piece, in float32, some rows at a time."""
        from isthmus.indexes.dense.index import VECTORS

        vectors = mapped(folder / VECTORS, folder)
        for first in range(0, len(vectors), _ROWS):
            yield vectors[first : first + _ROWS].astype(np.float32)
