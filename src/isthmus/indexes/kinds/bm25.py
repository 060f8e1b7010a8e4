"""Words and how often documents have them, scored by BM25."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from isthmus.errors import MismatchError
from isthmus.indexes.index import Index
from isthmus.indexes.kinds._base import Builder, IndexKind
from isthmus.indexes.manifest import Description, Manifest


class Bm25(IndexKind):
    """Files: those of `bm25.postings`."""

    title = "a bm25 index"
    needed = ("bm25",)

    def builder(self, folder: Path, description: Description) -> Builder:
        """A builder of an index in this folder."""
        from isthmus.indexes.bm25.builder import Bm25Builder

        return Bm25Builder(folder, description)

    def open(self, folder: Path, hnsw: bool) -> Any:
        """The index in one piece in this folder."""
        from isthmus.indexes.bm25.index import Bm25Index

        return Bm25Index.open(folder)

    def open_segments(self, folder: Path, hnsw: bool) -> Index:
        """The index in segments in this folder."""
        from isthmus.indexes.bm25.segments import SegmentedBm25Index

        return SegmentedBm25Index.open(folder)

    def check_growing(self, folder: Path, manifest: Manifest) -> None:
        """Raises if an old index holds scores alone: those of a grown one depend on all of it."""
        from isthmus.indexes.bm25.postings import FREQUENCIES

        if manifest.segments is None and FREQUENCIES not in manifest.files:
            raise MismatchError(
                f"the bm25 index {str(folder)!r} holds scores only ({manifest.created_by} wrote "
                "it), and cannot be added to or deleted from",
                "build it again: isthmus index … --overwrite",
            )
