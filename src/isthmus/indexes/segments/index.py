"""An index that grew: several whole indexes searched as one, without the documents deleted since.

An opened index keeps what was there at that moment: segments never change, and what is mapped stays
readable after a writer has removed its name.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from isthmus.errors import SettingsError
from isthmus.indexes.dense.hnsw import has_hnsw, not_there
from isthmus.indexes.index import Answer, Index, VectorIndex
from isthmus.indexes.kinds import open_whole
from isthmus.indexes.manifest import MANIFEST, SEGMENTS, TITLES, Manifest, stated_manifest
from isthmus.indexes.segments.living import LivingDocuments, Part, Rows, best_of, read_deleted
from isthmus.indexes.verification import read_manifest
from isthmus.records import Ranking

_MORE = 4


class SegmentedIndex(Index):
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
        self.segments = sorted(
            ((index, part) for index, part in zip(indexes, parts, strict=True) if len(part)),
            key=lambda segment: -len(segment[1]),
        )

    @classmethod
    def open(cls, folder: Path, hnsw: bool = False) -> SegmentedIndex:
        """The index in a folder, with the segments that its manifest names.

        By hnsw are searched those segments that have it, one at least; the others exactly.
        """
        manifest = read_manifest(folder)
        folders = [folder / SEGMENTS / one.name for one in manifest.segments or ()]
        if hnsw and not any(map(has_hnsw, folders)):
            raise not_there(folder)
        indexes = [open_whole(one, manifest.kind, hnsw and has_hnsw(one)) for one in folders]
        return cls(
            manifest, indexes, [read_deleted(folder, one) for one in manifest.segments or ()]
        )

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
        if not self.segments:
            return [Ranking(query_id) for query_id in query_ids]
        queries = self.segments[0][0].prepared(vectors, query_ids)
        request = _Request(vectors, queries, query_ids, depth, among)
        highest = [np.empty(0) for _ in query_ids]
        floors = np.full(len(query_ids), -np.inf)
        found = []
        for index, part in self.segments:
            answers = _living(index, part, request, floors)
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


class _Request(NamedTuple):
    """A search of all segments; `queries` are the vectors as `answers` takes them."""

    vectors: Any
    queries: Any
    query_ids: Sequence[str]
    depth: int
    among: Collection[str] | None


def _living(
    index: VectorIndex,
    part: Part,
    request: _Request,
    floors: npt.NDArray[np.float64],
) -> list[Answer]:
    """The best living documents of a segment, as far as they reach the floors.

    As many more are searched as are likely to be deleted, and more still where that was not enough:
    the first living ones of a longer ranking are the best of the living ones.
    """
    depth, wanted = request.depth, part.enough(request.depth)
    answers = index.answers(request.queries, wanted, request.among, floors)
    if wanted == depth:
        return answers
    living = [part.living(answer) for answer in answers]

    def ends_early(number: int) -> bool:
        return len(living[number][0]) < depth and len(answers[number][0]) == wanted

    while short := list(filter(ends_early, range(len(answers)))):
        wanted *= _MORE
        names = [request.query_ids[number] for number in short]
        queries: Any = index.prepared(request.vectors[short], names)
        again = index.answers(queries, wanted, request.among, floors[short])
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


def open_index(folder: Path, hnsw: bool = False) -> Index:
    """The index in a folder, whole or in segments, as it is at one moment.

    A writer may replace the manifest and remove what only the old one named while files are being
    opened; then they are opened again.
    """
    while True:
        before = _manifest_text(folder)
        try:
            index = _open(folder, hnsw)
        except Exception:
            if before == _manifest_text(folder):
                raise
            continue
        if before == _manifest_text(folder):
            return index


def _open(folder: Path, hnsw: bool) -> Index:
    manifest = stated_manifest(folder)
    if hnsw and manifest.kind != "dense":
        raise SettingsError(
            f"hnsw is for a dense index; {str(folder)!r} is {TITLES[manifest.kind]}",
            "leave hnsw out: this index is searched exactly, and fast",
        )
    if manifest.segments is None:
        return cast(Index, open_whole(folder, manifest.kind, hnsw))
    if manifest.kind == "bm25":
        from isthmus.indexes.bm25.segments import SegmentedBm25Index

        return SegmentedBm25Index.open(folder)
    return SegmentedIndex.open(folder, hnsw)


def _manifest_text(folder: Path) -> bytes | None:
    file = folder / MANIFEST
    return file.read_bytes() if file.is_file() else None
