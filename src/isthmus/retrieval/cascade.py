"""One searcher finds candidates, the others score them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from isthmus.collections import Problems
from isthmus.records import Query, Ranking
from isthmus.retrieval.hybrid import HybridSearcher
from isthmus.retrieval.searcher import Searcher, usable


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
