"""A segment: some documents with all their fields, whose files never change once it is finished."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from isthmus.indexes.arrays import mapped
from isthmus.indexes.columns import FILES as COLUMN_FILES
from isthmus.indexes.columns import Columns, read_columns
from isthmus.indexes.columns import check as check_columns
from isthmus.indexes.documents import FILES as DOCUMENT_FILES
from isthmus.indexes.documents import DocumentStore, Rows, check_documents
from isthmus.indexes.fields import check_field, files_of, open_vectors, read_vectors
from isthmus.indexes.integrity import check, damaged
from isthmus.indexes.manifest import (
    DOCUMENTS,
    MANIFEST,
    METADATA,
    PASSAGES,
    SEGMENTS,
    Manifest,
    SegmentAbout,
)
from isthmus.indexes.passages import FILES as PASSAGE_FILES
from isthmus.indexes.passages import PassageStore, check_passages
from isthmus.indexes.vectors import Mask, RowReader, VectorSearch
from isthmus.records import Document, document_of

NO_ROWS: Rows = np.empty(0, dtype=np.int64)
_READ = 1024  # documents at a time
_FILES = {DOCUMENTS: DOCUMENT_FILES, METADATA: COLUMN_FILES, PASSAGES: PASSAGE_FILES}


class Segment:
    """The documents and fields of one segment, opened and checked when they are first used."""

    def __init__(self, index: Path, about: SegmentAbout, manifest: Manifest) -> None:
        self.about = about
        self.manifest = manifest
        self.folder = index / SEGMENTS / about.name
        self._index = index
        self._searches: dict[tuple[str, bool], VectorSearch] = {}
        self.deleted = self._deleted()

    def __len__(self) -> int:
        return self.about.documents

    @property
    def living(self) -> int:
        """The number of documents that were not deleted."""
        return self.about.living

    @property
    def ranks(self) -> Rows:
        """The place of each document in the order of ids."""
        return self.documents.ranks

    @cached_property
    def lives(self) -> npt.NDArray[np.bool_]:
        """For each document, whether it was not deleted."""
        lives = np.ones(len(self), dtype=np.bool_)
        lives[self.deleted] = False
        return lives

    @cached_property
    def documents(self) -> DocumentStore:
        """The documents, deleted ones too."""
        store = DocumentStore(self.part(DOCUMENTS))
        if len(store) != len(self):
            raise damaged(self.folder, f"it is not of {len(self):,} documents", self._index)
        return store

    @cached_property
    def passages(self) -> PassageStore | None:
        """The passages of the documents; None where the index has none."""
        if self.about.passages is None:
            return None
        return PassageStore(self.part(PASSAGES), self.documents)

    @cached_property
    def columns(self) -> Columns:
        """What documents have besides texts, by column."""
        return read_columns(self.part(METADATA), len(self))

    def row(self, document_id: str) -> int | None:
        """The row of a living document, or None."""
        row = self.documents.row(document_id)
        return None if row is None or not self.lives[row] else row

    def part(self, name: str) -> Path:
        """The folder of a part or field, whose files are what was written; else it is refused."""
        folder = self.folder / name
        shape = part_shape(self.manifest, self.about, name)
        files = self.about.files_of(name)
        for needed in _needed(self.manifest, self.about, name):
            if needed not in files:  # then nothing would vouch for it
                why = f"it does not name {name}/{needed} of segment {self.about.name}"
                raise damaged(self._index / MANIFEST, why, self._index)
        check(folder, files, self._index, examine=lambda: self._examine(name), shape=shape)
        return folder

    def search(self, name: str, graph: bool = False) -> VectorSearch:
        """The search of a field of vectors; by its graph, where it has one."""
        if (name, graph) not in self._searches:
            self._searches[name, graph] = self._open(name, graph)
        return self._searches[name, graph]

    def vectors(self, name: str, searched: bool = False) -> RowReader:
        """The vectors of a field as a builder takes them, or as search multiplies them."""
        about, counts = self.manifest.fields[name], self.about.fields[name]
        return read_vectors(self.part(name), about, counts, self.about.rows(about), searched)

    def spread(self, name: str, mask: Mask) -> Mask:
        """For each row of a field, whether its document is in the mask and was not deleted."""
        if mask is None:
            return self._living_rows(name)
        allowed = mask & self.lives if len(self.deleted) else mask
        return self._on_rows(name, allowed)

    def on_passages(self, name: str) -> bool:
        """Whether the rows of a field are passages."""
        return self.about.passages is not None and self.manifest.fields[name].on_passages

    def rows(self, name: str) -> Iterator[list[Document]]:
        """Everything that a field has a row for, in the order of rows, some at a time."""
        for first in range(0, len(self), _READ):
            documents = np.arange(first, min(first + _READ, len(self)))
            if self.on_passages(name):
                assert self.passages is not None
                yield list(self.passages.passages(self.passages.of(documents)))
            else:
                yield self.documents.documents(documents)

    def rows_of(
        self, name: str, ids: Sequence[str], by: Literal["document", "passage"]
    ) -> tuple[Rows, list[str]]:
        """The rows of a field that are of living documents or passages, and the id each is of."""
        if by == "document":
            rows, names = self._living(ids)
            if not self.on_passages(name):
                return rows, names
            assert self.passages is not None
            counts = np.diff(self.passages.starts)[rows].tolist()
            owners = [one for one, count in zip(names, counts, strict=True) for _ in range(count)]
            return self.passages.of(rows), owners
        assert self.passages is not None
        known = dict(zip(*reversed(self._living([document_of(one) for one in ids])), strict=True))
        names = [one for one in ids if document_of(one) in known]
        numbers = [int(one.rpartition("#")[2]) - 1 for one in names]
        first = self.passages.starts[[known[document_of(one)] for one in names]]
        return first + np.array(numbers, dtype=np.int64), names

    def texts(self, name: str, rows: Rows) -> list[Document]:
        """What these rows of a field are of, as an encoder reads it."""
        if self.on_passages(name):
            assert self.passages is not None
            return list(self.passages.passages(rows))
        return self.documents.documents(rows)

    def _living(self, ids: Sequence[str]) -> tuple[Rows, list[str]]:
        """The rows of the living documents of these ids, and their ids."""
        rows = self.documents.locate(ids)
        there = [number for number, row in enumerate(rows.tolist()) if row >= 0 and self.lives[row]]
        return rows[there], [ids[number] for number in there]

    def check(self) -> None:
        """Refuses a segment of which any file is not what was written."""
        for name in (DOCUMENTS, METADATA, *self.manifest.fields):
            self.part(name)
        if self.about.passages is not None:
            self.part(PASSAGES)

    def _living_rows(self, name: str) -> Mask:
        if not len(self.deleted):
            return None
        return self._lives_on_passages if self.on_passages(name) else self.lives

    @cached_property
    def _lives_on_passages(self) -> npt.NDArray[np.bool_]:
        assert self.passages is not None
        return np.repeat(self.lives, np.diff(self.passages.starts))

    def _on_rows(self, name: str, allowed: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        if not self.on_passages(name):
            return allowed
        assert self.passages is not None
        return np.repeat(allowed, np.diff(self.passages.starts))

    def _ranks_of(self, name: str) -> Callable[[Rows], Rows]:
        """What tells rows of equal score apart: the order of the ids of their documents."""
        if not self.on_passages(name):
            return self.ranks.__getitem__
        passages = self.passages
        assert passages is not None
        return lambda rows: self.ranks[passages.parents(rows)]

    def _open(self, name: str, graph: bool) -> VectorSearch:
        about, counts = self.manifest.fields[name], self.about.fields[name]
        rows, ranks = self.about.rows(about), self._ranks_of(name)
        return open_vectors(self.part(name), about, counts, rows, ranks, graph)

    def _examine(self, name: str) -> None:
        """Refuses files whose numbers lead out of others."""
        folder, count = self.folder / name, len(self)
        if name == DOCUMENTS:
            check_documents(folder, count)
        elif name == METADATA:
            check_columns(folder, count)
        elif name == PASSAGES:
            assert self.about.passages is not None
            check_passages(folder, self.about.passages, count)
        else:
            about = self.manifest.fields[name]
            check_field(folder, about, self.about.fields[name], self.about.rows(about))

    def _deleted(self) -> Rows:
        """The rows of the documents that no longer count, ascending."""
        if (name := self.about.deleted) is None:
            return NO_ROWS
        check(self.folder, {name: self.about.files[name]}, self._index)
        rows: Rows = np.array(mapped(self.folder / name, self._index))
        fits = rows.ndim == 1 and rows.dtype == np.int64 and len(rows) == self.about.dead
        # Compared and not subtracted, which could overflow.
        if not fits or rows[0] < 0 or rows[-1] >= len(self) or np.any(rows[1:] <= rows[:-1]):
            why = f"it does not name some of {len(self):,} documents"
            raise damaged(self.folder / name, why, self._index)
        return rows


def part_shape(manifest: Manifest, about: SegmentAbout, name: str) -> str:
    """All that the structure of a part's files depends on, in one line."""
    shape: tuple[object, ...] = about.documents, about.passages
    if (field := manifest.fields.get(name)) is not None:
        dimension = getattr(field, "dimension", None)
        shape = (*shape, about.fields[name], field.type, dimension, field.settings)
    return repr(shape)


def _needed(manifest: Manifest, about: SegmentAbout, name: str) -> Iterable[str]:
    """The names of the files that a part or field is read from."""
    if name in _FILES:
        return _FILES[name]
    return files_of(manifest.fields[name], about.fields[name])
