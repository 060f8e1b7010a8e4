"""The segments that a writer works on."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from isthmus.indexes.dense.hnsw import HnswSettings, has_hnsw, read_about
from isthmus.indexes.documents import DocumentStore
from isthmus.indexes.segments.living import Part, Rows


@dataclass(frozen=True, eq=False)
class Held:
    """A segment, or the whole index before it has any; `file` says which rows are deleted.

    Rows are documents or, in an index of passages, these.
    """

    folder: Path
    store: DocumentStore
    deleted: Rows
    file: str | None = None

    @property
    def part(self) -> Part:
        """Its living rows."""
        return Part(self.store, self.deleted)

    def rows(self, ids: Collection[str]) -> Rows:
        """The rows of the living documents among these ids, or of all their passages."""
        store = self.store
        found = store.passage_rows(list(ids)) if store.has_passages else store.rows(ids)
        return np.setdiff1d(found, self.deleted, assume_unique=True)

    def documents(self, rows: Rows) -> int:
        """How many documents these rows are; passages count as one for each document."""
        if not self.store.has_passages:
            return len(rows)
        return int(np.isin(rows, self.store.first_rows, assume_unique=True).sum())

    @property
    def living_documents(self) -> int:
        """How many documents are not deleted, passages counted as one for each."""
        total = len(self.store.first_rows) if self.store.has_passages else len(self.store)
        return total - self.documents(self.deleted)

    def without(self, rows: Rows) -> Held:
        """A copy with these rows deleted too."""
        if not len(rows):
            return self
        return replace(self, deleted=np.union1d(self.deleted, rows), file=None)


def lost_hnsw(before: Sequence[Held], after: Sequence[Held]) -> HnswSettings | None:
    """The settings of the graph that no segment has any more."""
    had = [held.folder for held in before if has_hnsw(held.folder)]
    if not had or any(has_hnsw(held.folder) for held in after):
        return None
    about = read_about(had[0])
    return None if about is None else about.settings
