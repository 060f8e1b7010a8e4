"""The checks that every document passes, whatever format it comes from."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator

from isthmus.collections.problems import Problems
from isthmus.errors import InputError, lone_surrogate
from isthmus.records import Document, Query


def screened(
    documents: Iterable[tuple[str, Document]], problems: Problems, source: str
) -> Iterator[Document]:
    """The documents, given with their places, that have a text and an id not seen before."""
    seen = _Seen()
    empty = True
    for where, document in documents:
        if half := lone_surrogate(document.id, document.title, document.text):
            _report_surrogate(half, f"document {document.id!r}", where, problems, document.id)
        elif (first := seen.add(document.id)) is not None:
            problems.report(
                "duplicate id",
                where,
                f"{document.id!r} was the id of document {first:,} already",
                "give every document an id of its own",
                document.id,
            )
        elif _is_blank(document.text) and _is_blank(document.title):
            problems.report(
                "empty text",
                where,
                f"document {document.id!r} has neither text nor title",
                "remove the document or give it a text",
                document.id,
            )
        else:
            empty = False
            yield document
    if empty:
        raise InputError(
            f"{source}: the corpus has no document with a text",
            f"check the path and the format{_told(problems)}",
        )


def screened_queries(
    queries: Iterable[tuple[str, Query]], problems: Problems, source: str
) -> dict[str, Query]:
    """The queries, given with their places, that have a text and an id not seen before, by id."""
    found: dict[str, Query] = {}
    for where, query in queries:
        if half := lone_surrogate(query.id, query.text):
            _report_surrogate(half, f"query {query.id!r}", where, problems)
        elif query.id in found:
            detail = f"{query.id!r} is the id of an earlier query"
            problems.report("duplicate id", where, detail, "give every query an id of its own")
        elif _is_blank(query.text):
            detail = f"query {query.id!r} has no text"
            problems.report("empty text", where, detail, "remove the query or give it a text")
        else:
            found[query.id] = query
    if not found:
        raise InputError(
            f"{source}: there is no query",
            'check the path and the format: lines such as {"_id": "q1", "text": "…"}, or q1, a '
            f"tab and the text{_told(problems)}",
        )
    return found


class _Seen:
    """The ids met so far, in a private table that moves to disk when it outgrows its cache."""

    def __init__(self) -> None:
        self._count = 0
        # Read by one thread at a time, but not always the same: tokenizers pulls from its own.
        self._table = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        self._table.execute("PRAGMA journal_mode = OFF")
        self._table.execute("PRAGMA cache_size = -65536")  # 64 MiB
        self._table.execute("CREATE TABLE seen (id TEXT PRIMARY KEY, position INT) WITHOUT ROWID")
        self._table.execute("BEGIN")
        self._add = self._table.cursor().execute

    def add(self, identifier: str) -> int | None:
        """The position of the earlier document with this id; None when it is the first."""
        self._count += 1
        insert = "INSERT OR IGNORE INTO seen VALUES (?, ?)"
        if self._add(insert, (identifier, self._count)).rowcount:
            return None
        found = self._table.execute("SELECT position FROM seen WHERE id = ?", (identifier,))
        return int(found.fetchone()[0])


def _report_surrogate(
    half: str, record: str, where: str, problems: Problems, document: str | None = None
) -> None:
    problems.report(
        "wrong encoding",
        where,
        f"{record} holds {half!r}, half of a surrogate pair, in place of a character",
        "correct the text",
        document,
    )


def _told(problems: Problems) -> str:
    return f"; {problems.summary()}" if problems.counts else ""


def _is_blank(text: str) -> bool:
    return not text or text.isspace()
