"""The documents inside an index: an Arrow stream on disk, read in place, found by row or by id.

A stream and not an Arrow file, because a stream can be cut at any block and continued: that is
what makes building resumable without writing the documents twice.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cached_property, lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Self, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from isthmus.errors import InputError
from isthmus.indexes.arrays import flush, give_up, mapped
from isthmus.indexes.integrity import damaged, parsing
from isthmus.indexes.structure import require
from isthmus.records import Document, Passage, Ranking, document_of

DOCUMENTS = "documents.arrow"
ORDER = "order.npy"
T = TypeVar("T")
_SCHEMA = pa.schema(
    [("id", pa.large_string()), ("title", pa.large_string()), ("text", pa.large_string())]
)
_PLACES = [("heading", pa.large_string()), ("start", pa.int64()), ("end", pa.int64())]
_PASSAGES = pa.schema([*_SCHEMA, *_PLACES])
_NUMBERED = "(?s)^.*#[1-9][0-9]{0,8}$"
_AFTER_MARK = "$"  # follows "#" in the order of characters: the end of a range of "ID#N"
_SOME = 1024  # ids that are sooner looked up than pandas is imported
_SHARE = 1000  # rows that are compared in the time in which one id is looked up
_READ = 512  # rows that are read one by one: `take` imports pyarrow.compute
_FEW = 20  # rows of a block that are sooner read one by one than taken
_KEPT = 2**14  # ids: every binary search begins with the same ones
_END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"


class DocumentStore:
    """The documents of an index, or their passages, in row order, memory-mapped."""

    def __init__(self, folder: Path) -> None:
        table = read_documents(folder)
        self._columns = {name: table.column(name) for name in table.schema.names}
        self._starts = np.cumsum([0, *map(len, self._columns["id"].chunks)])
        self._by_id, self.ranks = _load_order(folder, len(self))
        ids = self._columns["id"]
        self._id = lru_cache(_KEPT)(lambda row: ids[row].as_py() or "")

    def __len__(self) -> int:
        return int(self._starts[-1])

    def id(self, row: int) -> str:
        """The id of the document in a row."""
        return self._id(row)

    def ids(self, rows: npt.NDArray[np.int64]) -> list[str]:
        """The ids of the documents in these rows, taken block by block: rows may be millions."""
        return self._values("id", rows)

    def documents(self, rows: npt.NDArray[np.int64]) -> list[Document]:
        """The documents in these rows, taken block by block."""
        names = ["id", "text", "title", *list(self._columns)[3:]]
        columns = [self._values(name, rows) for name in names]
        kind = Passage if self.has_passages else Document
        return [
            kind(i, text or "", title or "", *place)
            for i, text, title, *place in zip(*columns, strict=True)
        ]

    @property
    def has_passages(self) -> bool:
        """Whether rows are passages of documents."""
        return len(self._columns) > len(_SCHEMA)

    def rankings(
        self,
        query_ids: Sequence[str],
        answers: Sequence[tuple[npt.NDArray[np.int64], npt.NDArray[np.floating[Any]]]],
    ) -> list[Ranking]:
        """One ranking per query from its rows and scores, best first."""
        ids = self.ids(np.concatenate([rows for rows, _ in answers])) if answers else []
        ends = np.cumsum([len(rows) for rows, _ in answers])
        return [
            Ranking(query_id, tuple(ids[end - len(rows) : end]), tuple(scores.tolist()))
            for query_id, (rows, scores), end in zip(query_ids, answers, ends, strict=True)
        ]

    def document(self, row: int) -> Document:
        """The document in a row; its text is empty if the index keeps no texts."""
        (found,) = self.documents(np.array([row]))
        return found

    def row(self, document_id: str) -> int | None:
        """The row of a document, or None: a binary search, so that no table of ids is loaded."""
        place = bisect_left(self._by_id, document_id, key=self._id)
        if place == len(self):
            return None
        row = int(self._by_id[place])
        return row if self.id(row) == document_id else None

    def locate(self, ids: Sequence[str]) -> npt.NDArray[np.int64]:
        """The row of each of these ids, -1 where it is not here; a binary search of all at once."""
        low = self._places(ids)
        rows = self._by_id[np.minimum(low, len(self) - 1)].astype(np.int64)
        here = _objects(self.ids(rows)) == _objects(ids)
        return np.where(here, rows, -1)

    def passage_rows(self, documents: Sequence[str]) -> npt.NDArray[np.int64]:
        """The rows of all passages of these documents, ascending; unknown ids have none."""
        first = self._places([f"{one}#" for one in documents])
        after = self._places([f"{one}{_AFTER_MARK}" for one in documents])
        spans = [self._by_id[low:high] for low, high in zip(first, after, strict=True)]
        rows = np.concatenate([*spans, np.empty(0, dtype=np.int64)])
        wanted = set(documents)  # "a#b#1" lies among the passages of "a"
        kept = [document_of(one) in wanted for one in self.ids(rows)]
        return _ascending(rows[np.array(kept, dtype=np.bool_)])

    @cached_property
    def first_rows(self) -> npt.NDArray[np.int64]:
        """The row of each document's first passage, ascending."""
        import pyarrow.compute as pc

        return np.flatnonzero(pc.ends_with(self._columns["id"], "#1").to_numpy())

    def passages(self, documents: Sequence[str]) -> list[str]:
        """The ids of all passages of these documents."""
        return self.ids(self.passage_rows(documents))

    def first_passages(self) -> list[str]:
        """The id of each document's first passage."""
        return self.ids(self.first_rows)

    def _places(self, ids: Sequence[str]) -> npt.NDArray[np.int64]:
        """Where each of these ids stands, or would, in the order of ids."""
        wanted = _objects(ids)
        low, high = np.zeros(len(wanted), dtype=np.int64), np.full(len(wanted), len(self))
        while len(open_ := np.flatnonzero(low < high)):
            middle = (low[open_] + high[open_]) // 2
            found = _objects(self.ids(self._by_id[middle]))
            below = (found < wanted[open_]).astype(np.bool_)
            low[open_[below]] = middle[below] + 1
            high[open_[~below]] = middle[~below]
        return low

    def rows(self, ids: Collection[str]) -> npt.NDArray[np.int64]:
        """The rows of the documents that have one of these ids, ascending."""
        if len(self) and len(ids) <= max(_SOME, len(self) // _SHARE):
            found = self.locate(list(ids))
            return _ascending(found[found >= 0])
        # Brings pandas, which takes as long as a whole search.
        import pyarrow.compute as pc

        wanted = pa.array(list(ids), pa.large_string())
        return np.flatnonzero(pc.is_in(self._columns["id"], wanted).to_numpy())

    def _values(self, name: str, rows: npt.NDArray[np.int64]) -> list[Any]:
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


class DocumentWriter:
    """Appends documents to the store of a folder, from a byte offset that is known to be whole."""

    def __init__(
        self, folder: Path, texts: bool, offset: int = 0, *, passages: bool = False
    ) -> None:
        self._folder = folder
        self._texts = texts
        self._schema = _PASSAGES if passages else _SCHEMA
        self._stream: BinaryIO = (folder / DOCUMENTS).open("r+b" if offset else "wb")
        self._stream.truncate(offset)
        self._stream.seek(offset)
        if not offset:
            self._stream.write(self._schema.serialize())

    def add(self, documents: Sequence[Document]) -> None:
        """Appends one block."""
        columns = {
            name: [getattr(document, name) for document in documents]
            if name != "text" or self._texts
            else [None] * len(documents)
            for name in self._schema.names
        }
        self._stream.write(pa.record_batch(columns, schema=self._schema).serialize())

    def flush(self) -> int:
        """Brings everything to the disk; the byte offset up to which the store is whole."""
        return flush(self._stream)

    def finish(self) -> None:
        """Closes the store and writes the order of the ids; ids that occur twice are refused."""
        self._stream.write(_END_OF_STREAM)
        self.flush()
        self.close()
        with pa.ipc.open_stream(pa.memory_map(str(self._folder / DOCUMENTS))) as reader:
            ids = pa.chunked_array([block.column("id") for block in reader], pa.large_string())
        import pyarrow.compute as pc  # a search does without

        by_id = pc.sort_indices(ids).to_numpy().astype(np.int64)
        _refuse_duplicates(ids, by_id)
        ranks = np.empty_like(by_id)
        ranks[by_id] = np.arange(len(by_id))
        np.save(self._folder / ORDER, np.stack([by_id, ranks]))

    def close(self) -> None:
        """Closes the file; what was not flushed is not promised."""
        give_up(self._stream)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_documents(folder: Path) -> pa.Table:
    """The documents of an index as a table that stays on the disk."""
    file = folder / DOCUMENTS
    with parsing(file, folder), pa.ipc.open_stream(pa.memory_map(str(file))) as reader:
        table = reader.read_all()
    if table.schema not in (_SCHEMA, _PASSAGES):
        raise damaged(file, f"it has the columns {table.schema.names}", folder)
    return table


def check_passages(table: pa.Table, stated: bool) -> None:
    """Raises unless rows are passages where that is stated, and documents otherwise."""
    require((table.schema == _PASSAGES) == stated, "its rows are not what is stated")
    if stated:
        import pyarrow.compute as pc

        named = pc.all(pc.match_substring_regex(table.column("id"), _NUMBERED)).as_py()
        require(named is not False, "it has ids that are not of passages")


def blocks(documents: Iterable[T], size: int) -> Iterator[list[T]]:
    """Documents, or texts, in lists of `size`; the last may be shorter."""
    remaining = iter(documents)
    while block := list(islice(remaining, size)):
        yield block


def _ascending(rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Every row once; np.unique would import numpy.ma."""
    ordered = np.sort(rows)
    once: npt.NDArray[np.int64] = ordered[np.diff(ordered, prepend=-1) != 0]
    return once


def _objects(ids: Sequence[str]) -> npt.NDArray[np.object_]:
    return np.array([*ids, None], dtype=object)[:-1]


def _load_order(folder: Path, count: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    order = mapped(folder / ORDER, folder)
    if order.shape != (2, count):
        raise damaged(folder / ORDER, f"it is not of {count:,} documents", folder)
    return order[0], order[1]


def _refuse_duplicates(ids: pa.ChunkedArray, by_id: npt.NDArray[np.int64]) -> None:
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
