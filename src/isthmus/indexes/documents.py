"""The documents of a segment: an Arrow stream on disk, read in place, found by row or by id.

A stream and not an Arrow file, because a stream can be cut at any block and continued: that is
what makes building resumable without writing the documents twice.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from isthmus.config.sealed_json import UnreadableError, parse_json
from isthmus.errors import InputError
from isthmus.indexes.arrays import flush, give_up, mapped, write_array
from isthmus.indexes.integrity import damaged, parsing
from isthmus.indexes.structure import below, refusing, require, shaped, uncompressed
from isthmus.records import Document

STREAM = "documents.arrow"
ORDER = "order.npy"
FILES = (STREAM, ORDER)
T = TypeVar("T")
Rows = npt.NDArray[np.int64]
_SCHEMA = pa.schema([(name, pa.large_string()) for name in ("id", "title", "text", "metadata")])
_SOME = 1024  # ids that are sooner looked up than pandas is imported
_SHARE = 1000  # rows that are compared in the time in which one id is looked up
_READ = 512  # rows that are read one by one: `take` imports pyarrow.compute
_FEW = 20  # rows of a block that are sooner read one by one than taken
_KEPT = 2**14  # ids: every binary search begins with the same ones
_END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"


class Columns:
    """The columns of an Arrow stream by row, taken block by block: rows may be millions."""

    def __init__(self, file: Path, schema: pa.Schema) -> None:
        with parsing(file, file.parent), pa.ipc.open_stream(pa.memory_map(str(file))) as reader:
            self.table = reader.read_all()
        if self.table.schema != schema:
            raise damaged(file, f"it has the columns {self.table.schema.names}", file.parent)
        self._columns = {name: self.table.column(name) for name in schema.names}
        first = self._columns[schema.names[0]]
        self._starts = np.cumsum([0, *map(len, first.chunks)])

    def __len__(self) -> int:
        return int(self._starts[-1])

    def value(self, name: str, row: int) -> Any:
        """One value."""
        return self._columns[name][row].as_py()

    def column(self, name: str) -> pa.ChunkedArray:
        """A whole column, on the disk."""
        return self._columns[name]

    def values(self, name: str, rows: Rows) -> list[Any]:
        """The values of a column in these rows."""
        column = self._columns[name]
        if len(rows) < max(_READ, _FEW * column.num_chunks):
            return [column[row].as_py() for row in rows.tolist()]
        # Arrow would copy the whole column together to take from all its blocks at once.
        found = np.empty(len(rows), dtype=object)
        blocks = np.searchsorted(self._starts, rows, side="right") - 1
        places = np.argsort(blocks, kind="stable")
        for same in np.split(places, np.flatnonzero(np.diff(blocks[places])) + 1):
            if len(same):
                block = blocks[same[0]]
                inside = np.ascontiguousarray(rows[same] - self._starts[block], dtype=np.int64)
                # Of its memory: pa.array imports pandas, which takes as long as a whole search.
                numbers = pa.Array.from_buffers(
                    pa.int64(), len(inside), [None, pa.py_buffer(inside)]
                )
                found[same] = column.chunk(block).take(numbers).to_pylist()
        return found.tolist()


class StreamWriter:
    """Appends blocks to an Arrow stream, from a byte offset that is known to be whole."""

    def __init__(self, file: Path, schema: pa.Schema, offset: int = 0) -> None:
        self._schema = schema
        self._stream: BinaryIO = file.open("r+b" if offset else "wb")
        self._stream.truncate(offset)
        self._stream.seek(offset)
        if not offset:
            self._stream.write(schema.serialize())

    def add(self, columns: Mapping[str, Sequence[Any]]) -> None:
        """Appends one block."""
        self._stream.write(pa.record_batch(dict(columns), schema=self._schema).serialize())

    def flush(self) -> int:
        """Brings everything to the disk; the byte offset up to which the stream is whole."""
        return flush(self._stream)

    def finish(self) -> None:
        """Ends the stream, and closes it."""
        self._stream.write(_END_OF_STREAM)
        self.flush()
        self.close()

    def close(self) -> None:
        """Closes the file; what was not flushed is not promised."""
        give_up(self._stream)


class DocumentStore:
    """The documents of a segment in row order, memory-mapped."""

    def __init__(self, folder: Path) -> None:
        self._columns = Columns(folder / STREAM, _SCHEMA)
        self._by_id, self.ranks = _load_order(folder, len(self))
        self._id = lru_cache(_KEPT)(lambda row: self._columns.value("id", row) or "")

    def __len__(self) -> int:
        return len(self._columns)

    def id(self, row: int) -> str:
        """The id of the document in a row."""
        return self._id(row)

    def ids(self, rows: Rows) -> list[str]:
        """The ids of the documents in these rows."""
        return self._columns.values("id", rows)

    def documents(self, rows: Rows) -> list[Document]:
        """The documents in these rows."""
        return _documents([self._columns.values(name, rows) for name in _SCHEMA.names])

    def metadata(self) -> Iterator[dict[str, Any]]:
        """What each document has besides its id, title and text, in row order."""
        for chunk in self._columns.column("metadata").chunks:
            yield from map(_metadata, chunk.to_pylist())

    def row(self, document_id: str) -> int | None:
        """The row of a document, or None: a binary search, so that no table of ids is loaded."""
        place = bisect_left(self._by_id, document_id, key=self._id)
        if place == len(self):
            return None
        row = int(self._by_id[place])
        return row if self.id(row) == document_id else None

    def locate(self, ids: Sequence[str]) -> Rows:
        """The row of each of these ids, -1 where it is not here; many by one binary search."""
        if not len(self):
            return np.full(len(ids), -1)
        if len(ids) < _READ:  # the places where every search begins are remembered
            found = (self.row(one) for one in ids)
            return np.array([-1 if row is None else row for row in found], dtype=np.int64)
        low = self._places(ids)
        rows = self._by_id[np.minimum(low, len(self) - 1)].astype(np.int64)
        here = _objects(self.ids(rows)) == _objects(ids)
        return np.where(here, rows, -1)

    def rows(self, ids: Collection[str]) -> Rows:
        """The rows of the documents that have one of these ids, ascending."""
        if len(self) and len(ids) <= max(_SOME, len(self) // _SHARE):
            found = self.locate(list(ids))
            return ascending(found[found >= 0])
        # Brings pandas, which takes as long as a whole search.
        import pyarrow.compute as pc

        wanted = pa.array(list(ids), pa.large_string())
        return np.flatnonzero(pc.is_in(self._columns.column("id"), wanted).to_numpy())

    def _places(self, ids: Sequence[str]) -> Rows:
        """Where each of these ids stands, or would, in the order of ids."""
        wanted = _objects(ids)
        low, high = np.zeros(len(wanted), dtype=np.int64), np.full(len(wanted), len(self))
        while len(open_ := np.flatnonzero(low < high)):
            middle = (low[open_] + high[open_]) // 2
            found = _objects(self.ids(self._by_id[middle]))
            before = (found < wanted[open_]).astype(np.bool_)
            low[open_[before]] = middle[before] + 1
            high[open_[~before]] = middle[~before]
        return low


class DocumentBuilder:
    """Writes the documents of a segment; resumes from the bytes that earlier work recorded."""

    def __init__(self, folder: Path, recorded: Mapping[str, int]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._stream = StreamWriter(folder / STREAM, _SCHEMA, recorded.get("offset", 0))

    def add(self, documents: Sequence[Document]) -> None:
        """Appends one block."""
        self._stream.add(
            {
                "id": [one.id for one in documents],
                "title": [one.title or None for one in documents],
                "text": [one.text for one in documents],
                "metadata": [_as_text(one.metadata) for one in documents],
            }
        )

    def flush(self) -> dict[str, int]:
        """Brings everything to the disk; what to record."""
        return {"offset": self._stream.flush()}

    def finish(self) -> DocumentStore:
        """The finished store; ids that occur twice are refused."""
        self._stream.finish()
        file = self._folder / STREAM
        with pa.ipc.open_stream(pa.memory_map(str(file))) as reader:
            ids = pa.chunked_array([block.column("id") for block in reader], pa.large_string())
        import pyarrow.compute as pc  # a search does without

        by_id = pc.sort_indices(ids).to_numpy().astype(np.int64)
        _refuse_duplicates(ids, by_id)
        ranks = np.empty_like(by_id)
        ranks[by_id] = np.arange(len(by_id))
        write_array(self._folder / ORDER, np.stack([by_id, ranks]))
        return DocumentStore(self._folder)

    def close(self) -> None:
        """Closes its file."""
        self._stream.close()


def read_stream(folder: Path, count: int) -> Iterator[Document]:
    """The first documents of a store that is still written to."""
    columns = Columns(folder / STREAM, _SCHEMA)
    for first in range(0, count, _READ):
        rows = np.arange(first, min(first + _READ, count))
        values = [columns.values(name, rows) for name in _SCHEMA.names]
        yield from _documents(values)


def _documents(columns: Sequence[Sequence[Any]]) -> list[Document]:
    return [
        Document(i, text or "", title or "", metadata=_metadata(metadata))
        for i, title, text, metadata in zip(*columns, strict=True)
    ]


def check_documents(folder: Path, rows: int) -> None:
    """Refuses a store of other documents than are stated, or whose order leads out of it."""
    with refusing(folder, STREAM):
        uncompressed(folder / STREAM)
        columns = Columns(folder / STREAM, _SCHEMA)
        columns.table.validate(full=True)
        require(len(columns) == rows, "it has other documents than are stated")
        require(columns.column("id").null_count == 0, "a document has no id")
    with refusing(folder, ORDER):
        order = mapped(folder / ORDER, folder)
        shaped(order, (2, rows), "<i8")
        below(order, rows)


def blocks(documents: Iterable[T], size: int) -> Iterator[list[T]]:
    """Documents, or texts, in lists of `size`; the last may be shorter."""
    remaining = iter(documents)
    while block := list(islice(remaining, size)):
        yield block


def _as_text(metadata: Mapping[str, Any]) -> str | None:
    return json.dumps(dict(metadata), ensure_ascii=False) if metadata else None


def _metadata(text: str | None) -> dict[str, Any]:
    if not text:
        return {}
    try:
        found = parse_json(text.encode())
    except UnreadableError:
        found = None
    return found if isinstance(found, dict) else {}  # of an index that was made to do harm


def ascending(rows: Rows) -> Rows:
    """Every row once; np.unique would import numpy.ma."""
    ordered = np.sort(rows)
    once: Rows = ordered[np.diff(ordered, prepend=-1) != 0]
    return once


def _objects(ids: Sequence[str]) -> npt.NDArray[np.object_]:
    return np.array([*ids, None], dtype=object)[:-1]


def _load_order(folder: Path, count: int) -> tuple[Rows, Rows]:
    order = mapped(folder / ORDER, folder)
    if order.shape != (2, count):
        raise damaged(folder / ORDER, f"it is not of {count:,} documents", folder)
    return order[0], order[1]


def _refuse_duplicates(ids: pa.ChunkedArray, by_id: Rows) -> None:
    import pyarrow.compute as pc  # a search does without

    ordered = ids.take(by_id)
    twice = pc.index(pc.equal(ordered[1:], ordered[:-1]), True).as_py()
    if twice >= 0:
        first, second = sorted((int(by_id[twice]), int(by_id[twice + 1])))
        raise InputError(
            f"two documents have the id {ordered[twice].as_py()!r}: numbers {first + 1:,} and "
            f"{second + 1:,} of the corpus",
            "rename or remove one of the two",
        )
