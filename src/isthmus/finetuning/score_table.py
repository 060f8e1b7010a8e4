"""Scores by query and document, in memory or cached on disk."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt
import xxhash
from filelock import FileLock

from isthmus.config.output import writing
from isthmus.finetuning.mining.candidates import NOTHING, Rows, Scores

ENTRY = np.dtype([("query", "<u8"), ("row", "<u4"), ("score", "<f4")])
Entries = npt.NDArray[np.void]
Digests = npt.NDArray[np.uint64]
SECONDS = 60.0


def digests(queries: Sequence[str]) -> Digests:
    """A 64-bit hash per query, of its text or id: the key of a table."""
    numbers = (xxhash.xxh3_64_intdigest(query.encode()) for query in queries)
    return np.fromiter(numbers, dtype=np.uint64, count=len(queries))


class ScoreTable:
    """Scores of pairs of a query and a row; the last entry of a pair counts."""

    def __init__(self, entries: Entries) -> None:
        order = np.lexsort((entries["row"], entries["query"]))
        self.entries = entries[order]

    def look_up(self, queries: Digests, rows: Rows) -> Scores:
        """The score of query n and each of rows[n]; NaN for NOTHING and for unknown pairs."""
        found = np.full(rows.shape, np.nan, dtype=np.float32)
        if not len(self.entries):
            return found
        known, numbers = np.unique(self.entries["query"], return_inverse=True)
        place = np.minimum(np.searchsorted(known, queries), len(known) - 1)
        # The query's number and the row in one integer: entries are in this very order.
        keys = numbers.astype(np.int64) << 32 | self.entries["row"]
        wanted = place[:, None].astype(np.int64) << 32 | np.maximum(rows, 0)
        entry = np.searchsorted(keys, wanted, side="right") - 1
        hit = (known[place] == queries)[:, None] & (keys[entry] == wanted) & (rows != NOTHING)
        found[hit] = self.entries["score"][entry[hit]]
        return found


class ScoreStore(ScoreTable):
    """A table that grows in a folder of files, each written whole; a kill loses a minute at most.

    Files are only added, under unique names: several processes may share a folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._read: set[Path] = set()
        super().__init__(np.empty(0, ENTRY))
        self._read_new()
        self._new: list[Entries] = []  # neither on disk nor in the table
        self._kept: list[Entries] = []  # on disk, but not in the table: ordering it takes a while
        self._written = time.monotonic()

    def _read_new(self) -> None:
        """Adds the files to the table that other processes have written since it was read."""
        files = sorted(set(self.folder.glob("*.npy")) - self._read)
        self._read |= set(files)
        parts = [np.load(file, allow_pickle=False) for file in files]
        super().__init__(np.concatenate([self.entries, *parts]))

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keeps other processes from scoring in the block; what they have scored is known in it."""
        with writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            with FileLock(self.folder / ".lock"):
                self._read_new()
                yield

    def look_up(self, queries: Digests, rows: Rows) -> Scores:
        """The score of query n and each of rows[n]; NaN for what is not on disk."""
        if self._kept:
            super().__init__(np.concatenate([self.entries, *self._kept]))
            self._kept = []
        return super().look_up(queries, rows)

    def add(self, queries: Digests, rows: Rows, scores: Scores) -> None:
        """Adds the scores of pairs; they are on disk a minute later, or after `flush`."""
        entries = np.empty(len(rows), ENTRY)
        entries["query"], entries["row"], entries["score"] = queries, rows, scores
        self._new.append(entries)
        if time.monotonic() - self._written > SECONDS:
            self.flush()

    def flush(self) -> None:
        """Writes what was added since the last flush."""
        self._written = time.monotonic()
        if not self._new:
            return
        entries = np.concatenate(self._new)
        name = uuid.uuid4().hex
        partial = self.folder / f".{name}.partial"
        with writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            with partial.open("wb") as stream:
                np.save(stream, entries, allow_pickle=False)
            partial.replace(self.folder / f"{name}.npy")
        self._read.add(self.folder / f"{name}.npy")
        self._kept.append(entries)
        self._new = []
