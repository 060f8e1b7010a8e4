"""Weights of terms, one sparse vector per document, searched through lists per term."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from isthmus.indexes.index import Index
from isthmus.indexes.kinds._base import Builder, IndexKind
from isthmus.indexes.manifest import Description, Manifest


class Inverted(IndexKind):
    """Files: those of `inverted.lists`, an array each."""

    title = "an inverted index"
    needed = ("dimension", "inverted", "layout")
    oldest_format = 2
    field = "sparse"

    def examine(self, folder: Path, manifest: Manifest) -> None:
        """Raises if the files of an index in one piece do not fit each other."""
        from isthmus.indexes.inverted.structure import examine

        examine(folder, manifest)

    def builder(self, folder: Path, description: Description) -> Builder:
        """A builder of an index in this folder."""
        from isthmus.indexes.inverted.builder import InvertedBuilder

        return InvertedBuilder(folder, description)

    def open(self, folder: Path, hnsw: bool) -> Index:
        """The index in one piece in this folder."""
        from isthmus.indexes.inverted.index import InvertedIndex

        return InvertedIndex.open(folder)

    def open_segments(self, folder: Path, hnsw: bool) -> Index:
        """The index in segments in this folder."""
        from isthmus.indexes.segments.index import SegmentedIndex

        return SegmentedIndex.open(folder)

    def searched_vectors(self, folder: Path, manifest: Manifest) -> Iterator[Any]:
        """All rows of an index in one piece, in whole numbers if it has those, some at a time."""
        from isthmus.indexes.inverted.forward import weighed_rows
        from isthmus.indexes.inverted.quantisation import searched

        assert manifest.inverted is not None
        for matrix in weighed_rows(folder):
            names = [f"row {number}" for number in range(matrix.shape[0])]
            yield searched(matrix, manifest.inverted, matrix.shape[1], names)
