"""An index that grew: several whole indexes searched as one, without the documents deleted since.

Whoever opens it keeps what was there at that moment: segments never change, and what is mapped
stays readable after a writer has removed its name.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Sequence
from functools import cached_property
from heapq import merge
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from isthmus.indexes.dense.index import Backend, DenseIndex
from isthmus.indexes.documents import DocumentStore
from isthmus.indexes.manifest import MANIFEST, SEGMENTS, Manifest, read_manifest
from isthmus.records import Document, Ranking

if TYPE_CHECKING:
    from isthmus.indexes.bm25 import Bm25Index
    from isthmus.indexes.inverted.index import InvertedIndex

Rows = npt.NDArray[np.int64]
Answer = tuple[Rows, npt.NDArray[np.float64]]
NO_ROWS: Rows = np.empty(0, dtype=np.int64)
_MORE = 4


class Part:
    """The living documents of one segment, numbered anew without the others."""

    def __init__(self, store: DocumentStore, deleted: Rows) -> None:
        self.store = store
        self._deleted = deleted

    def __len__(self) -> int:
        return len(self.store) - len(self._deleted)

    @cached_property
    def lives(self) -> npt.NDArray[np.bool_]:
        """Of each row, whether its document was not deleted."""
        lives = np.ones(len(self.store), dtype=np.bool_)
        lives[self._deleted] = False
        return lives

    @cached_property
    def rows(self) -> Rows:
        """The rows of the living documents."""
        return np.flatnonzero(self.lives)

    def number(self, document_id: str) -> int | None:
        """Which of the living documents has this id."""
        row = self.store.row(document_id)
        if row is None or not self.lives[row]:
            return None
        return row - int(np.searchsorted(self._deleted, row))

    def row(self, number: int) -> int:
        """The row of the living document of this number."""
        return int(self.rows[number]) if len(self._deleted) else number


class LivingDocuments:
    """The documents of all segments, as a DocumentStore shows those of one."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = parts
        self._starts = np.cumsum([0, *map(len, parts)]).tolist()

    def __len__(self) -> int:
        return int(self._starts[-1])

    def id(self, row: int) -> str:
        """The id of the document in a row."""
        store, inner = self._place(row)
        return store.id(inner)

    def document(self, row: int) -> Document:
        """The document in a row; its text is empty where the index was told not to keep texts."""
        store, inner = self._place(row)
        return store.document(inner)

    def row(self, document_id: str) -> int | None:
        """The row of a document, or None."""
        for start, part in zip(self._starts, self._parts, strict=False):
            if (number := part.number(document_id)) is not None:
                return int(start + number)
        return None

    def _place(self, row: int) -> tuple[DocumentStore, int]:
        place = bisect_right(self._starts, row) - 1
        part = self._parts[place]
        return part.store, part.row(row - self._starts[place])


class SegmentedIndex:
    """Segments of one kind, searched one after the other; exact, ties by document id."""

    def __init__(
        self,
        manifest: Manifest,
        indexes: Sequence[DenseIndex | InvertedIndex],
        deleted: Sequence[Rows],
    ) -> None:
        assert manifest.segments is not None
        self.manifest = manifest
        self._indexes = indexes
        self._parts = [
            Part(index.store, rows) for index, rows in zip(indexes, deleted, strict=True)
        ]
        self.store = LivingDocuments(self._parts)

    @classmethod
    def open(cls, folder: Path, backend: Backend = "numpy") -> SegmentedIndex:
        """The index in a folder, with the segments that its manifest names."""
        manifest = read_manifest(folder)
        segments = manifest.segments or []
        indexes = [_open_whole(folder / SEGMENTS / one.name, backend) for one in segments]
        return cls(manifest, indexes, [read_deleted(folder, one.deleted) for one in segments])

    def __len__(self) -> int:
        return len(self.store)

    def search(
        self,
        vectors: Any,
        depth: int,
        query_ids: Sequence[str],
        among: Collection[str] | None = None,
    ) -> list[Ranking]:
        """The `depth` documents of highest inner product per query, equal ones by document id.

        `among` leaves only the documents of these ids.
        """
        answers = [
            part.store.rankings(query_ids, _living(index, part, vectors, depth, query_ids, among))
            for index, part in zip(self._indexes, self._parts, strict=True)
        ]
        per_query = zip(*answers, strict=True) if answers else [()] * len(query_ids)
        return [
            merged(query_id, rankings, depth)
            for query_id, rankings in zip(query_ids, per_query, strict=True)
        ]


def merged(query_id: str, rankings: Sequence[Ranking], depth: int) -> Ranking:
    """The best of several rankings of different documents, equal scores by document id."""
    best = list(islice(merge(*rankings, key=lambda entry: (-entry[1], entry[0])), depth))
    return Ranking(query_id, tuple(i for i, _ in best), tuple(score for _, score in best))


def _living(
    index: DenseIndex | InvertedIndex,
    part: Part,
    vectors: Any,
    depth: int,
    query_ids: Sequence[str],
    among: Collection[str] | None,
) -> list[Answer]:
    """What the segment finds among its living documents.

    It is asked for as many more as are deleted on average, and for more still where that was not
    enough: the first living ones of a longer ranking are the best of the living ones.
    """
    if len(part) == len(index):
        return index.find(vectors, depth, query_ids, among)
    found: dict[int, Answer] = {}
    asked = list(range(len(query_ids)))
    wanted = -(-depth * len(index) // max(1, len(part))) + 1
    while asked:
        answers = index.find(vectors, wanted, [query_ids[number] for number in asked], among)
        short = []
        for place, (rows, scores) in enumerate(answers):
            kept = part.lives[rows]
            found[asked[place]] = rows[kept][:depth], scores[kept][:depth]
            if np.count_nonzero(kept) < depth and len(rows) == wanted:
                short.append(place)
        asked, vectors = [asked[place] for place in short], vectors[short] if short else None
        wanted *= _MORE
    return [found[number] for number in range(len(query_ids))]


def open_index(
    folder: Path, backend: Backend = "numpy"
) -> DenseIndex | InvertedIndex | SegmentedIndex | Bm25Index:
    """The index in a folder, whole or in segments, as it is at one moment.

    A writer may replace the manifest and remove what only the old one named while files are being
    opened; then they are opened again.
    """
    while True:
        before = _manifest_text(folder)
        try:
            index: DenseIndex | InvertedIndex | SegmentedIndex | Bm25Index = _open(folder, backend)
        except Exception:
            if before == _manifest_text(folder):
                raise
            continue
        if before == _manifest_text(folder):
            return index


def read_deleted(folder: Path, file: str | None) -> Rows:
    """The rows of a segment that no longer count, ascending."""
    if file is None:
        return NO_ROWS
    rows: Rows = np.load(folder / file).astype(np.int64)
    return rows


def _open(folder: Path, backend: Backend) -> Any:
    if read_manifest(folder).segments is None:
        return _open_whole(folder, backend)
    return SegmentedIndex.open(folder, backend)


def _open_whole(folder: Path, backend: Backend) -> Any:
    kind = read_manifest(folder).kind
    if kind == "dense":
        return DenseIndex.open(folder, backend)
    if kind == "bm25":
        from isthmus.indexes.bm25 import Bm25Index

        return Bm25Index.open(folder)
    from isthmus.indexes.inverted.index import InvertedIndex  # brings numba with its first search

    return InvertedIndex.open(folder)


def _manifest_text(folder: Path) -> bytes | None:
    file = folder / MANIFEST
    return file.read_bytes() if file.is_file() else None
