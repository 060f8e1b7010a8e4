"""Many queries answered by one retriever, batch by batch under a progress bar."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from isthmus.collections import Problems
from isthmus.errors import InputError, lone_surrogate
from isthmus.indexes.filters import Filter
from isthmus.progress import Bar, notice
from isthmus.records import Query, Ranking
from isthmus.retrieval.searcher import Retriever

_AT_ONCE = 1024


def answers(
    retriever: Retriever,
    queries: Sequence[Query],
    depth: int,
    problems: Problems | None = None,
    at_once: int = _AT_ONCE,
    filter: Filter | None = None,  # noqa: A002 (the word that users know)
) -> Iterator[list[Ranking]]:
    """A list of rankings per batch, in the order of the queries; at most `depth` documents each.

    A query without words to search for (stop words alone, say) has an empty ranking, and a notice
    counts such queries: they are no reason to leave the others unanswered.
    """
    mute = [query for query in queries if not can_be_read(retriever, query.text)]
    if mute:
        notice(
            f"{len(mute):,} of {len(queries):,} queries have no words to search for and get no "
            f"results, first {mute[0].id!r}: {mute[0].text!r}"
        )
    silent = {query.id for query in mute}
    with Bar("searching", len(queries), "queries") as bar:
        for first in range(0, len(queries), at_once):
            batch = queries[first : first + at_once]
            read = [query for query in batch if query.id not in silent]
            found = {r.query_id: r for r in retriever.search(read, depth, problems, filter)}
            yield [found.get(query.id, Ranking(query.id)) for query in batch]
            bar.advance(len(batch))


def can_be_read(retriever: Retriever, text: str) -> bool:
    """Whether a query has words to search for; one in a wrong encoding is left to `search`."""
    return bool(lone_surrogate(text)) or retriever.has_tokens(text)


def check_query(retriever: Retriever, text: str) -> None:
    """Refuses the only query of a command where it has no words to search for."""
    if not can_be_read(retriever, text):
        raise without_words(text)


def without_words(query: str) -> InputError:
    """The refusal of a query without words to search for."""
    return InputError(
        f"the query {query!r} has no words to search for",
        "write a query with at least one word that is not a stop word",
    )
