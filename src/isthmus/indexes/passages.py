"""The passages of a segment's documents: places in their texts, each a row of the vector fields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from isthmus.indexes.arrays import mapped, write_array
from isthmus.indexes.documents import Columns, DocumentStore, Rows, StreamWriter, ascending
from isthmus.indexes.integrity import damaged
from isthmus.indexes.structure import refusing, require, rising, shaped, uncompressed
from isthmus.records import Passage

STREAM = "passages.arrow"
STARTS = "starts.npy"
FILES = (STREAM, STARTS)
_SCHEMA = pa.schema(
    [
        ("document", pa.int64()),
        ("heading", pa.large_string()),
        ("start", pa.int64()),
        ("end", pa.int64()),
    ]
)


class PassageStore:
    """The passages of all documents, those of a document one after the other, memory-mapped."""

    def __init__(self, folder: Path, documents: DocumentStore) -> None:
        self._columns = Columns(folder / STREAM, _SCHEMA)
        self._documents = documents
        self.starts: Rows = mapped(folder / STARTS, folder)
        if self.starts.shape != (len(documents) + 1,):
            raise damaged(folder / STARTS, f"it is not of {len(documents):,} documents", folder)

    def __len__(self) -> int:
        return len(self._columns)

    def parents(self, rows: Rows) -> Rows:
        """The rows of the documents that these passages are of."""
        return np.searchsorted(self.starts, rows, side="right") - 1

    def of(self, documents: Rows) -> Rows:
        """The rows of all passages of these documents, in their order."""
        spans = [np.arange(self.starts[one], self.starts[one + 1]) for one in documents.tolist()]
        return np.concatenate([*spans, np.empty(0, dtype=np.int64)])

    def passages(self, rows: Rows) -> list[Passage]:
        """The passages in these rows, with their texts."""
        parents = self.parents(rows)
        once = ascending(parents)
        owners = dict(zip(once.tolist(), self._documents.documents(once), strict=True))
        places = [self._columns.values(name, rows) for name in ("heading", "start", "end")]
        found = []
        for row, parent, heading, start, end in zip(
            rows.tolist(), parents.tolist(), *places, strict=True
        ):
            owner, number = owners[parent], row - int(self.starts[parent]) + 1
            found.append(
                Passage(
                    f"{owner.id}#{number}",
                    owner.text[start:end],
                    owner.title,
                    heading or "",
                    start,
                    end,
                    metadata=owner.metadata,
                )
            )
        return found


class PassageBuilder:
    """Writes the passages of a segment; resumes from the bytes that earlier work recorded."""

    def __init__(self, folder: Path, recorded: Mapping[str, int]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self.rows = recorded.get("rows", 0)
        self._stream = StreamWriter(folder / STREAM, _SCHEMA, recorded.get("offset", 0))

    def add(self, first: int, passages: Sequence[Passage]) -> None:
        """Appends the passages of some documents, of which `first` is the row of the first."""
        documents, row = [], first - 1
        for passage in passages:
            row += passage.number == 1
            documents.append(row)
        self._stream.add(
            {
                "document": documents,
                "heading": [one.heading or None for one in passages],
                "start": [one.start for one in passages],
                "end": [one.end for one in passages],
            }
        )
        self.rows += len(passages)

    def flush(self) -> dict[str, int]:
        """Brings everything to the disk; what to record."""
        return {"rows": self.rows, "offset": self._stream.flush()}

    def finish(self, documents: DocumentStore) -> PassageStore:
        """The finished store."""
        self._stream.finish()
        parents = Columns(self._folder / STREAM, _SCHEMA).column("document").to_numpy()
        counts = np.bincount(parents, minlength=len(documents))
        write_array(self._folder / STARTS, np.concatenate([[0], np.cumsum(counts)]))
        return PassageStore(self._folder, documents)

    def close(self) -> None:
        """Closes its file."""
        self._stream.close()


def check_passages(folder: Path, rows: int, documents: int) -> None:
    """Refuses passages other than are stated, or whose places lead out of their documents."""
    with refusing(folder, STREAM):
        uncompressed(folder / STREAM)
        columns = Columns(folder / STREAM, _SCHEMA)
        columns.table.validate(full=True)
        require(len(columns) == rows, "it has other passages than are stated")
        parents, firsts, ends = (columns.column(n).to_numpy() for n in ("document", "start", "end"))
        require(bool(np.all((firsts >= 0) & (ends >= firsts))), "a passage ends before it begins")
    with refusing(folder, STARTS):
        shaped(starts := mapped(folder / STARTS, folder), (documents + 1,), "<i8")
        rising(starts, rows)
        expected = np.repeat(np.arange(documents), np.diff(starts))
        require(np.array_equal(parents, expected), "passages are of other documents")
