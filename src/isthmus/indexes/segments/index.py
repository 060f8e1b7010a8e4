"""An index that grew: several whole indexes searched as one, without the documents deleted since.

Whoever opens it keeps what was there at that moment: segments never change, and what is mapped
stays readable after a writer has removed its name.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Sequence
from functools import cached_property
from itertools import islice
from math import ceil, sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from isthmus.indexes.approximation import (
    Backend,
    approximations,
    check_backend,
    is_approximate,
    not_there,
)
from isthmus.indexes.dense.index import DenseIndex
from isthmus.indexes.documents import DocumentStore
from isthmus.indexes.integrity import damaged, parsing
from isthmus.indexes.manifest import (
    MANIFEST,
    SEGMENTS,
    Kind,
    Manifest,
    Segment,
    read_manifest,
    stated_manifest,
)
from isthmus.indexes.vector_index import Answer, VectorIndex
from isthmus.records import Document, Ranking

if TYPE_CHECKING:
    from isthmus.indexes.bm25 import Bm25Index
    from isthmus.indexes.bm25.segments import SegmentedBm25Index
    from isthmus.indexes.inverted.index import InvertedIndex
    from isthmus.indexes.inverted.seismic_approximation import SeismicIndex

Index: TypeAlias = (
    "DenseIndex | InvertedIndex | SeismicIndex | SegmentedIndex | Bm25Index | SegmentedBm25Index"
)
Rows = npt.NDArray[np.int64]
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
    """Segments of one kind, searched one after the other; exact as they are, ties by id."""

    def __init__(
        self,
        manifest: Manifest,
        indexes: Sequence[VectorIndex],
        deleted: Sequence[Rows],
    ) -> None:
        assert manifest.segments is not None
        self.manifest = manifest
        parts = [Part(index.store, rows) for index, rows in zip(indexes, deleted, strict=True)]
        self.store = LivingDocuments(parts)
        # The largest first: the scores that it reaches spare the others most.
        self._segments = sorted(
            ((index, part) for index, part in zip(indexes, parts, strict=True) if len(part)),
            key=lambda segment: -len(segment[1]),
        )

    @classmethod
    def open(cls, folder: Path, backend: Backend = "numpy") -> SegmentedIndex:
        """The index in a folder, with the segments that its manifest names.

        Segments without the approximation that is asked for are searched exactly.
        """
        manifest = read_manifest(folder)
        segments = manifest.segments or []
        folders = [folder / SEGMENTS / one.name for one in segments]
        if is_approximate(backend) and not any(backend in approximations(one) for one in folders):
            raise not_there(folder, backend)
        indexes = [open_segment(one, backend, manifest.kind) for one in folders]
        return cls(manifest, indexes, [read_deleted(folder, one) for one in segments])

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
        if not self._segments:
            return [Ranking(query_id) for query_id in query_ids]
        queries = self._segments[0][0].prepared(vectors, query_ids)
        asked = _Asked(vectors, queries, query_ids, depth, among)
        highest = [np.empty(0) for _ in query_ids]
        floors = np.full(len(query_ids), -np.inf)
        found = []
        for index, part in self._segments:
            answers = _living(index, part, asked, floors)
            for number, (_, scores) in enumerate(answers):
                if len(scores):
                    both = np.concatenate([highest[number], scores])
                    highest[number] = _highest(both, depth)
                    if len(highest[number]) == depth:
                        floors[number] = highest[number][0]
            found.append((part.store, answers))
        # Only now is it known which ids are needed. Equal scores all stay: ids decide.
        entries: list[list[tuple[str, float]]] = [[] for _ in query_ids]
        for store, answers in found:
            kept = list(map(_reaching, answers, floors))
            ids = iter(store.ids(np.concatenate([rows for rows, _ in kept])))
            for some, (rows, scores) in zip(entries, kept, strict=True):
                some += zip(islice(ids, len(rows)), scores.tolist(), strict=True)
        return [
            best_of(query_id, some, depth)
            for query_id, some in zip(query_ids, entries, strict=True)
        ]


def best_of(query_id: str, entries: Iterable[tuple[str, float]], depth: int) -> Ranking:
    """The ranking of the best of these ids and scores, equal scores by id."""
    best = sorted((-score, document_id) for document_id, score in entries)[:depth]
    return Ranking(query_id, tuple(i for _, i in best), tuple(-score for score, _ in best))


class _Asked(NamedTuple):
    """What all segments are asked; `queries` are the vectors as indexes of this kind take them."""

    vectors: Any
    queries: Any
    query_ids: Sequence[str]
    depth: int
    among: Collection[str] | None


def _living(
    index: VectorIndex,
    part: Part,
    asked: _Asked,
    floors: npt.NDArray[np.float64],
) -> list[Answer]:
    """What the segment finds among its living documents, as far as it reaches the floors.

    It is asked for as many more as are likely to be deleted, and for more still where that was not
    enough: the first living ones of a longer ranking are the best of the living ones.
    """
    depth, wanted = asked.depth, part.enough(asked.depth)
    answers = index.answers(asked.queries, wanted, asked.among, floors)
    if wanted == depth:
        return answers
    living = [part.living(answer) for answer in answers]

    def ends_early(number: int) -> bool:
        return len(living[number][0]) < depth and len(answers[number][0]) == wanted

    while short := list(filter(ends_early, range(len(answers)))):
        wanted *= _MORE
        names = [asked.query_ids[number] for number in short]
        queries: Any = index.prepared(asked.vectors[short], names)
        again = index.answers(queries, wanted, asked.among, floors[short])
        for number, answer in zip(short, again, strict=True):
            answers[number], living[number] = answer, part.living(answer)
    return [(rows[:depth], scores[:depth]) for rows, scores in living]


def _reaching(answer: Answer, floor: float) -> Answer:
    rows, scores = answer
    count = np.count_nonzero(scores >= floor)  # they are the first
    return rows[:count], scores[:count]


def _highest(scores: npt.NDArray[np.float64], depth: int) -> npt.NDArray[np.float64]:
    """The `depth` highest, the lowest of them first; all where there are fewer."""
    cut = len(scores) - depth
    return scores if cut < 0 else np.partition(scores, cut)[cut:]


def open_index(folder: Path, backend: Backend = "numpy") -> Index:
    """The index in a folder, whole or in segments, as it is at one moment.

    A writer may replace the manifest and remove what only the old one named while files are being
    opened; then they are opened again.
    """
    while True:
        before = _manifest_text(folder)
        try:
            index: Index = _open(folder, backend)
        except Exception:
            if before == _manifest_text(folder):
                raise
            continue
        if before == _manifest_text(folder):
            return index


def open_segment(folder: Path, backend: Backend, kind: Kind) -> Any:
    """One segment of an index of this kind; exact if it has no such approximation."""
    there = not is_approximate(backend) or backend in approximations(folder)
    return _open_whole(folder, backend if there else "numpy", kind)


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


def _open(folder: Path, backend: Backend) -> Any:
    check_backend(folder, backend)
    manifest = stated_manifest(folder)
    if manifest.segments is None:
        return _open_whole(folder, backend, manifest.kind)
    if manifest.kind == "bm25":
        from isthmus.indexes.bm25.segments import SegmentedBm25Index

        return SegmentedBm25Index.open(folder)
    return SegmentedIndex.open(folder, backend)


def _open_whole(folder: Path, backend: Backend, kind: Kind) -> Any:
    if kind == "dense":
        return DenseIndex.open(folder, backend)
    if kind == "bm25":
        from isthmus.indexes.bm25 import Bm25Index

        return Bm25Index.open(folder)
    if backend == "seismic":
        from isthmus.indexes.inverted.seismic_approximation import SeismicIndex

        return SeismicIndex.open(folder)
    from isthmus.indexes.inverted.index import InvertedIndex  # brings numba with its first search

    return InvertedIndex.open(folder)


def _manifest_text(folder: Path) -> bytes | None:
    file = folder / MANIFEST
    return file.read_bytes() if file.is_file() else None
