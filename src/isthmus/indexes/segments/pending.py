"""Additions and deletions that are not committed yet."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xxhash

from isthmus.indexes.kinds import Builder, builder_for
from isthmus.indexes.manifest import Description
from isthmus.indexes.segments.living import Rows
from isthmus.records import Document, Passage, document_of


class NewSegment(NamedTuple):
    """A finished segment that no manifest names yet, and its rows that do not count."""

    folder: Path
    deleted: Rows


class Pending:
    """Segments under construction, and the ids that are to go."""

    def __init__(
        self, description: Description, fingerprint: str, new_folder: Callable[[], Path]
    ) -> None:
        """Starts from a corpus of this fingerprint; `description` is that of new segments."""
        self.removed: set[str] = set()
        self.folders: list[Path] = []
        self._description = description
        self._new_folder = new_folder
        self._deleted: list[list[int]] = []
        self._places: dict[str, list[tuple[int, int]]] = {}  # segment and row of each passage
        self._written: set[str] = set()  # into the segment under construction, deleted or not
        self._builder: Builder | None = None
        self._open_builder = ExitStack()
        self._digest = xxhash.xxh3_128(fingerprint.encode())

    @property
    def added(self) -> set[str]:
        """The ids of the documents that will be there."""
        return set(self._places)

    @property
    def fingerprint(self) -> str:
        """A digest of the corpus with these changes; equal changes of equal corpora agree."""
        return self._digest.hexdigest()

    def add(self, documents: Sequence[Document], vectors: Any) -> None:
        """Writes documents with their vectors, if any; of those with one id the last counts.

        The passages of a document come one after the other, from the first one on.
        """
        latest = {document.id: place for place, document in enumerate(documents)}
        if not latest:
            return
        if len(latest) < len(documents):
            chosen = sorted(latest.values())
            documents = [documents[place] for place in chosen]
            vectors = None if vectors is None else vectors[chosen]
        if not latest.keys().isdisjoint(self._written):
            self._finish()  # a segment has an id once
        builder = self._builder or self._begin()
        first = builder.rows
        builder.add(documents, vectors)
        for row, document in enumerate(documents, first):
            self._note(document, row)

    def resume(self, documents: Iterator[Document]) -> int:
        """How many documents an interrupted writer had added, taken from these once more."""
        rows = (self._builder or self._begin()).rows
        for row, document in enumerate(islice(documents, rows)):
            self._note(document, row)
        return len(self._places)

    def delete(self, ids: Iterable[str]) -> None:
        """Notes ids that are to go, whether they were committed or not."""
        for document_id in [ids] if isinstance(ids, str) else ids:
            self._forget(document_id)
            self.removed.add(document_id)
            self._digest.update(repr(document_id).encode())

    def finish(self) -> list[NewSegment]:
        """The new segments that have documents left."""
        self._finish()
        segments = [
            NewSegment(folder, np.array(sorted(rows), dtype=np.int64))
            for folder, rows in zip(self.folders, self._deleted, strict=True)
        ]
        used = {number for places in self._places.values() for number, _ in places}
        return [segment for number, segment in enumerate(segments) if number in used]

    def close(self) -> None:
        """Gives up what was not finished."""
        with suppress(OSError):  # a full disk
            self._open_builder.close()

    def _begin(self) -> Builder:
        self.folders.append(self._new_folder())
        self._deleted.append([])
        self._builder = builder_for(self.folders[-1], self._description)
        self._open_builder.enter_context(self._builder)
        return self._builder

    def _note(self, document: Document, row: int) -> None:
        document_id, first = document.id, True
        if isinstance(document, Passage):
            document_id, first = document_of(document.id), document.number == 1
        if first:
            self._forget(document_id)
        self._written.add(document.id)
        self._places.setdefault(document_id, []).append((len(self.folders) - 1, row))
        self._digest.update(repr((document.id, document.title, document.text)).encode())

    def _finish(self) -> None:
        if self._builder is not None:
            self._builder.finish({})
            self._open_builder.close()
            self._builder = None
            self._written.clear()

    def _forget(self, document_id: str) -> None:
        for number, row in self._places.pop(document_id, []):
            self._deleted[number].append(row)
