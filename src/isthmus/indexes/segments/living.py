"""The documents of segments that were not deleted since."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from functools import cached_property
from math import ceil, sqrt
from pathlib import Path

import numpy as np
import numpy.typing as npt

from isthmus.indexes.documents import DocumentStore
from isthmus.indexes.index import Answer
from isthmus.indexes.integrity import damaged, parsing
from isthmus.indexes.manifest import SEGMENTS, Manifest, Segment
from isthmus.records import Document, Ranking

Rows = npt.NDArray[np.int64]
NO_ROWS: Rows = np.empty(0, dtype=np.int64)


class Part:
    """The living documents of one segment, numbered anew without the others."""

    def __init__(self, store: DocumentStore, deleted: Rows) -> None:
        self.store = store
        self._deleted = deleted

    def __len__(self) -> int:
        return len(self.store) - len(self._deleted)

    @cached_property
    def lives(self) -> npt.NDArray[np.bool_]:
        """For each row, whether its document was not deleted."""
        lives = np.ones(len(self.store), dtype=np.bool_)
        lives[self._deleted] = False
        return lives

    @cached_property
    def rows(self) -> Rows:
        """The rows of the living documents."""
        return np.flatnonzero(self.lives)

    def enough(self, depth: int) -> int:
        """How many of all documents, best first, are likely to hold so many living ones.

        Where the deleted ones lie among them by chance, all but one time in several hundred.
        """
        if not len(self._deleted):
            return depth
        share = len(self) / len(self.store)
        likely = (depth + 3 * sqrt(depth * (1 - share))) / share
        return min(ceil(likely), depth + len(self._deleted))

    def living(self, answer: Answer) -> Answer:
        """The living documents of an answer."""
        rows, scores = answer
        lives = self.lives[rows]
        return rows[lives], scores[lives]

    def ids(self, rows: Rows) -> list[str]:
        """The ids in those of these rows that live."""
        return self.store.ids(rows[self.lives[rows]])

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
        """The document in a row; its text is empty if the index keeps no texts."""
        store, inner = self._place(row)
        return store.document(inner)

    def row(self, document_id: str) -> int | None:
        """The row of a document, or None."""
        for start, part in zip(self._starts, self._parts, strict=False):
            if (number := part.number(document_id)) is not None:
                return int(start + number)
        return None

    def passages(self, documents: Sequence[str]) -> list[str]:
        """The ids of all passages of these documents."""
        return [one for part in self._parts for one in part.ids(part.store.passage_rows(documents))]

    def first_passages(self) -> list[str]:
        """The id of each document's first passage."""
        return [one for part in self._parts for one in part.ids(part.store.first_rows)]

    def _place(self, row: int) -> tuple[DocumentStore, int]:
        place = bisect_right(self._starts, row) - 1
        part = self._parts[place]
        return part.store, part.row(row - self._starts[place])


def living_parts(folder: Path, manifest: Manifest) -> list[tuple[Path, Part]]:
    """The documents of an index with the folders they lie in: its segments', or its own."""
    if manifest.segments is None:
        return [(folder, Part(DocumentStore(folder), NO_ROWS))]
    places = [(folder / SEGMENTS / one.name, one) for one in manifest.segments]
    return [(place, Part(DocumentStore(place), read_deleted(folder, one))) for place, one in places]


def read_deleted(folder: Path, segment: Segment) -> Rows:
    """The rows of a segment that no longer count, ascending."""
    if segment.deleted is None:
        return NO_ROWS
    with parsing(folder / segment.deleted, folder):
        rows: Rows = np.load(folder / segment.deleted, allow_pickle=False)
    fits = rows.ndim == 1 and rows.dtype == np.int64 and len(rows) > 0
    if not fits or rows[0] < 0 or rows[-1] >= segment.documents or np.any(np.diff(rows) <= 0):
        why = f"it does not name some of {segment.documents:,} rows"
        raise damaged(folder / segment.deleted, why, folder)
    return rows


def best_of(query_id: str, entries: Iterable[tuple[str, float]], depth: int) -> Ranking:
    """The ranking of the best of these ids and scores, equal scores by id."""
    best = sorted((-score, document_id) for document_id, score in entries)[:depth]
    return Ranking(query_id, tuple(i for _, i in best), tuple(-score for score, _ in best))
