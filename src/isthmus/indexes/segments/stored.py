"""The documents that an index holds: found many at a time, and those not looked for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from isthmus.indexes.segments.living import living_parts
from isthmus.indexes.verification import read_manifest
from isthmus.records import Document, Passage, document_of


class StoredDocuments:
    """The living documents of an index folder, as they are at one moment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifest = read_manifest(folder)
        self._parts = [part for _, part in living_parts(folder, self.manifest)]
        self._unseen = [part.lives.copy() for part in self._parts]

    def find(self, ids: Sequence[str]) -> dict[str, list[Document]]:
        """What is there of each of these ids: the document, or its passages in their order.

        It remembers that these documents were looked for.
        """
        found: dict[str, list[Document]] = {}
        for part, unseen in zip(self._parts, self._unseen, strict=True):
            if part.store.has_passages:
                rows = part.store.passage_rows(ids)
            else:
                rows = part.store.locate(ids)
                rows = rows[rows >= 0]
            rows = rows[part.lives[rows]]
            unseen[rows] = False
            for document in part.store.documents(rows):
                found.setdefault(owner(document), []).append(document)
        return {one: sorted(some, key=_number) for one, some in found.items()}

    def unseen(self) -> list[str]:
        """The ids of the documents that were never looked for."""
        ids: dict[str, None] = {}
        for part, unseen in zip(self._parts, self._unseen, strict=True):
            names = part.store.ids(np.flatnonzero(unseen))
            ids |= dict.fromkeys(map(document_of, names) if part.store.has_passages else names)
        return list(ids)


def owner(row: Document) -> str:
    """The id of the document that a row is, or is a passage of."""
    return document_of(row.id) if isinstance(row, Passage) else row.id


def _number(row: Document) -> int:
    return row.number if isinstance(row, Passage) else 0
