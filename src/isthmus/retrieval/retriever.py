"""What everything that answers queries has in common."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from isthmus.collections import Problems
from isthmus.records import Document, Query, Ranking


class Retriever(Protocol):
    """Anything that answers queries: a Searcher, another HybridSearcher, a RerankingSearcher."""

    @property
    def keeps_texts(self) -> bool:
        """Whether documents come with their texts."""

    def has_tokens(self, text: str) -> bool:
        """Whether anything of a text is left to search for."""

    def search(
        self, queries: Sequence[Query], depth: int = 10, problems: Problems | None = None
    ) -> list[Ranking]:
        """One ranking per query."""

    def documents(self, ids: Iterable[str], query: str | None = None) -> list[Document]:
        """The documents with these ids; of long ones, the best passage for the query."""
