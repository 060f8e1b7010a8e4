"""Documents found by their passages: each scores as its best passage does (max-P), exactly."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, cast

from isthmus.indexes.index import Documents, Index
from isthmus.records import Document, Passage, Ranking, document_of

if TYPE_CHECKING:
    from isthmus.indexes.bm25 import Bm25Index

_DEEPER = 4  # times as many passages as documents are searched first, and as many again after that


class _Passages(Documents, Protocol):
    def passages(self, documents: Sequence[str]) -> list[str]: ...

    def first_passages(self) -> list[str]: ...


class LongDocuments(Index):
    """An index of passages that answers with documents."""

    def __init__(self, index: Index) -> None:
        self.index = index
        self.manifest = index.manifest
        self._passages = cast(_Passages, index.store)
        self.store = _WholeDocuments(self._passages)

    def has_tokens(self, text: str) -> bool:
        """Whether anything of a text is left to search a BM25 index for."""
        return cast("Bm25Index", self.index).has_tokens(text)

    def search(
        self,
        queries: Any,
        depth: int,
        query_ids: Sequence[str],
        among: Collection[str] | None = None,
    ) -> list[Ranking]:
        """The `depth` documents of the best passages per query, equal ones by document id.

        Passages are searched deeper until no further one could belong to the answer.
        """
        if among is not None:
            return [found.by_document(depth) for found in self._among(queries, query_ids, among)]
        answers = [Ranking(query_id) for query_id in query_ids]
        wanted, left = min(_DEEPER * depth, len(self.index)), list(range(len(query_ids)))
        while left:
            names = [query_ids[number] for number in left]
            found = self.index.search(_some(queries, left), wanted, names)
            for number, passages in zip(left, found, strict=True):
                answers[number] = passages.by_document(depth)
            if wanted == len(self.index):
                break
            left = [
                number
                for number, passages in zip(left, found, strict=True)
                if len(passages) == wanted and _may_miss(answers[number], passages, depth)
            ]
            wanted = min(_DEEPER * wanted, len(self.index))
        return answers

    def shown(self, query: Any, ids: Sequence[str]) -> list[Document]:
        """The best passage of each of these documents for one query; the first one without any.

        The query is as `search` takes it, a batch of one; None: the first passages.
        """
        chosen = {document_id: f"{document_id}#1" for document_id in ids}
        if query is not None:
            (found,) = self._among(query, ["query"], ids)
            for passage in reversed(found.document_ids):
                chosen[document_of(passage)] = passage
        rows = [self._passages.row(passage) for passage in chosen.values()]
        return [self._passages.document(row) for row in rows if row is not None]

    def whole(self, document_id: str) -> Document | None:
        """A document put together from its passages, at their places in its text, or None."""
        rows = map(self._passages.row, self._passages.passages([document_id]))
        parts = [cast(Passage, self._passages.document(row)) for row in rows if row is not None]
        text = ""
        for one in sorted(parts, key=lambda part: part.start):
            # What no passage holds is white space between them.
            text = text.ljust(one.start) + one.text[max(0, len(text) - one.start) :]
        return Document(document_id, text, parts[0].title) if parts else None

    def _among(
        self, queries: Any, query_ids: Sequence[str], documents: Collection[str]
    ) -> list[Ranking]:
        """All passages of these documents, ranked."""
        passages = self._passages.passages(list(documents))
        if not passages:
            return [Ranking(query_id) for query_id in query_ids]
        return self.index.search(queries, len(passages), query_ids, among=passages)


class _WholeDocuments:
    """The documents of an index of passages, in the order of ids."""

    def __init__(self, passages: _Passages) -> None:
        self._passages = passages

    @cached_property
    def _first(self) -> list[str]:
        return sorted(self._passages.first_passages())

    def __len__(self) -> int:
        return len(self._first)

    def id(self, row: int) -> str:
        """The id of the document in a row."""
        return document_of(self._first[row])

    def document(self, row: int) -> Document:
        """The first passage of the document in a row."""
        place = self._passages.row(self._first[row])
        assert place is not None
        return self._passages.document(place)

    def row(self, document_id: str) -> int | None:
        """The row of a document, or None."""
        wanted = f"{document_id}#1"
        row = bisect_left(self._first, wanted)
        return row if row < len(self._first) and self._first[row] == wanted else None


def _may_miss(documents: Ranking, passages: Ranking, depth: int) -> bool:
    """Whether a passage below these might bring in another document."""
    return len(documents) < depth or documents.scores[-1] <= passages.scores[-1]


def _some(queries: Any, numbers: list[int]) -> Any:
    if isinstance(queries, list | tuple):
        return [queries[number] for number in numbers]
    return queries if queries.shape[0] == len(numbers) else queries[numbers]
