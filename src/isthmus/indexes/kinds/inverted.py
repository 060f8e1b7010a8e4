"""Weights of terms, one sparse vector per document, searched through lists per term."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from isthmus.indexes.approximation import About, ApproximationSettings, Backend
from isthmus.indexes.index import Index
from isthmus.indexes.kinds._base import Builder, IndexKind
from isthmus.indexes.manifest import Description, Manifest


class Inverted(IndexKind):
    """Files: those of `inverted.lists`, an array each."""

    title = "an inverted index"
    needed = ("dimension", "inverted", "layout")
    oldest_format = 2
    field = "sparse"
    backends = ("numpy", "seismic")

    def examine(self, folder: Path, manifest: Manifest) -> None:
        """Raises if the files of an index in one piece do not fit each other."""
        from isthmus.indexes.inverted.structure import examine

        examine(folder, manifest)

    def builder(self, folder: Path, description: Description) -> Builder:
        """A builder of an index in this folder."""
        from isthmus.indexes.inverted.builder import InvertedBuilder

        return InvertedBuilder(folder, description)

    def open(self, folder: Path, backend: Backend) -> Index:
        """The index in one piece in this folder."""
        if backend == "seismic":
            from isthmus.indexes.inverted.seismic_approximation import SeismicIndex

            return SeismicIndex.open(folder)
        from isthmus.indexes.inverted.index import InvertedIndex

        return InvertedIndex.open(folder)

    def open_segments(self, folder: Path, backend: Backend) -> Index:
        """The index in segments in this folder."""
        from isthmus.indexes.segments.index import SegmentedIndex

        return SegmentedIndex.open(folder, backend)

    def searched_vectors(self, folder: Path, manifest: Manifest) -> Iterator[Any]:
        """All rows of an index in one piece, in whole numbers if it has those, some at a time."""
        from isthmus.indexes.inverted.forward import weighed_rows
        from isthmus.indexes.inverted.quantisation import searched

        assert manifest.inverted is not None
        for matrix in weighed_rows(folder):
            names = [f"row {number}" for number in range(matrix.shape[0])]
            yield searched(matrix, manifest.inverted, matrix.shape[1], names)

    def check_library(self, needed_for: str) -> None:
        """Raises if Seismic is not installed."""
        from isthmus.indexes.inverted.seismic_approximation import import_seismic

        import_seismic(needed_for)

    def approximate(self, folder: Path, settings: ApproximationSettings, queries: Any) -> About:
        """Builds seismic of the index in this folder, if needed, and measures it."""
        from isthmus.indexes.inverted.seismic_approximation import build_seismic

        return build_seismic(folder, settings, queries)
