"""Scores of queries and documents: files as they are published, tables, and a cache on disk."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash
from filelock import FileLock

from isthmus.collections import Problems
from isthmus.collections.fields import json_lines
from isthmus.collections.files import lines, plain_name
from isthmus.collections.trec import decimal
from isthmus.config.output import writing
from isthmus.errors import InputError, shown
from isthmus.finetuning.candidates import NOTHING, Rows, Scores

_QUERY = ("qid", "query_id", "query-id", "query")
_DOCUMENT = ("pid", "document_id", "corpus-id", "docid", "doc_id")
_SCORE = ("score", "ce-score")
_PICKLES = (".pkl", ".pickle", ".pt", ".pth")
_FORMS = (
    "query, document and score separated by tabs; a TREC run; jsonl with qid, pid and score, or "
    "with qid and scores {document: score}"
)

Score = tuple[str, str, float]


def read_scores(file: Path, problems: Problems) -> Iterator[Score]:
    """Query, document and score, one after the other; what is broken is reported."""
    name = plain_name(file)
    if name.endswith(_PICKLES):
        raise InputError(
            f"teacher.file: {str(file)!r} is a pickle, which runs code when it is read",
            "if you trust its source, convert it to jsonl outside isthmus: for query, scores in "
            'pickle.load(…).items(): print(json.dumps({"qid": query, "scores": scores}))',
        )
    if name.endswith((".jsonl", ".ndjson")):
        return _from_json(file, problems)
    return _from_text(file, problems)


def _id(value: Any) -> str | None:
    """The id that a text or a whole number is; None for other values."""
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        return None
    return str(value)


def _from_text(file: Path, problems: Problems) -> Iterator[Score]:
    for number, line in lines(file, problems):
        columns = line.split("\t")
        if len(columns) != 3:
            columns = line.split()
        if len(columns) == 6:
            columns = [columns[0], columns[2], columns[4]]
        where = f"{file}:{number}"
        if len(columns) != 3:
            problems.report(
                "broken line",
                where,
                f"{len(columns)} columns where three, or a run's six, are expected: {line[:60]!r}",
                "write query, document and score, separated by tabs",
            )
            continue
        if number == 1 and columns[0] in _QUERY:
            continue
        score = decimal(columns[2])
        if score is None or not _is_score(score):
            _report(columns[2], where, problems)
        else:
            yield columns[0], columns[1], score


def _from_json(file: Path, problems: Problems) -> Iterator[Score]:
    for where, record in json_lines(file, problems):
        yield from _checked(_first(record, _QUERY), _pairs(record), where, problems)


def _pairs(record: dict[str, Any]) -> list[tuple[Any, Any]]:
    """Documents and scores of a line: one, or a mapping."""
    if isinstance(scores := record.get("scores"), dict):
        return list(scores.items())
    return [(_first(record, _DOCUMENT), _first(record, _SCORE))]


def _checked(
    query: Any, pairs: Iterable[tuple[Any, Any]], where: str, problems: Problems
) -> Iterator[Score]:
    query_id = _id(query)
    for document, score in pairs:
        document_id = _id(document)
        if query_id is None or document_id is None:
            detail = f"{shown(query)} and {shown(document)} are not both ids"
            problems.report("broken line", where, detail, f"write {_FORMS}")
        elif isinstance(score, bool) or not isinstance(score, int | float) or not _is_score(score):
            _report(score, where, problems)
        else:
            yield query_id, document_id, float(score)


def _report(score: object, where: str, problems: Problems) -> None:
    detail = f"the score {shown(score)} is not a finite number"
    problems.report("broken line", where, detail, "correct the score")


def _is_score(value: float) -> bool:
    return bool(abs(value) <= float(np.finfo(np.float32).max))  # False for NaN


def _first(record: dict[str, Any], names: Iterable[str]) -> Any:
    return next((record[name] for name in names if name in record), None)


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
