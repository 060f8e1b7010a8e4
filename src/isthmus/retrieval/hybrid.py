"""Several searchers answering as one: fused, or one searching and the others scoring."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, cast

from isthmus.collections import Problems
from isthmus.errors import SettingsError
from isthmus.records import Document, Query, Ranking
from isthmus.retrieval.fusion import Fusion, fuse, fusions
from isthmus.retrieval.searcher import Searcher, usable


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


class HybridSearcher:
    """Searchers over the same documents, their rankings fused."""

    def __init__(
        self,
        searchers: Sequence[Retriever],
        fusion: str | Fusion = "weighted_sum",
        weights: Sequence[float] | None = None,
        candidates: int = 1000,
    ) -> None:
        """Every searcher finds `candidates` documents, or more if a search is deeper."""
        self.searchers = tuple(searchers)
        self.weights = tuple(weights if weights is not None else [1.0] * len(self.searchers))
        self.candidates = candidates
        self.fusion: Fusion = (
            fusions.load(fusion, where="fusion") if isinstance(fusion, str) else fusion
        )
        wrong = ""
        if len(self.weights) != len(self.searchers):
            wrong = f"do not fit {len(self.searchers)} searchers"
        elif min(self.weights, default=0) < 0:
            wrong = "are not all 0 or more"
        elif not any(self.weights):
            wrong = "leave nothing: all are 0"
        if wrong:
            raise SettingsError(
                f"weights = {list(self.weights)} {wrong}",
                "give one number of 0 or more for each index, such as 1 for all",
            )

    @property
    def keeps_texts(self) -> bool:
        """Whether any of the searchers has them."""
        return any(searcher.keeps_texts for searcher in self.searchers)

    def has_tokens(self, text: str) -> bool:
        """Whether any of the searchers finds something to search for."""
        return any(searcher.has_tokens(text) for searcher in self.searchers)

    def search(
        self, queries: Sequence[Query], depth: int = 10, problems: Problems | None = None
    ) -> list[Ranking]:
        """One ranking per query, at most `depth` long; empty for queries skipped as problems.

        A query that only some searchers can read (stop words alone, say) is answered by those.
        """
        answers = self.components(queries, depth, problems)
        together = zip(*answers, strict=True)
        return [fuse(rankings, self.weights, self.fusion, depth) for rankings in together]

    def documents(self, ids: Iterable[str], query: str | None = None) -> list[Document]:
        """The documents with these ids, from the first searcher that keeps texts.

        Of long ones, the passage that this searcher finds best for the query.
        """
        keeping = (searcher for searcher in self.searchers if searcher.keeps_texts)
        return next(keeping, self.searchers[0]).documents(ids, query)

    def components(
        self, queries: Sequence[Query], depth: int = 10, problems: Problems | None = None
    ) -> list[list[Ranking]]:
        """What each searcher answers by itself, before fusion."""
        usable(queries, self.has_tokens, depth, problems)
        depth = max(depth, self.candidates)
        return [searcher.search(queries, depth, Problems("skip")) for searcher in self.searchers]


class CascadeSearcher(HybridSearcher):
    """A hybrid in which only the first searcher searches.

    The others look up its candidates, so that a sparse index and the memory-mapped matrix of a
    dense one answer a query with `candidates` inner products. Documents that only the others would
    have found are missed: that is the price.
    """

    def has_tokens(self, text: str) -> bool:
        """Whether the first searcher finds something to search for."""
        return self.searchers[0].has_tokens(text)

    def components(
        self, queries: Sequence[Query], depth: int = 10, problems: Problems | None = None
    ) -> list[list[Ranking]]:
        """The candidates by the scores of each searcher, before fusion."""
        usable(queries, self.has_tokens, depth, problems)
        first, *others = self.searchers
        found = first.search(queries, max(depth, self.candidates), Problems("skip"))
        return [found, *(cast(Searcher, other).score(queries, found) for other in others)]
