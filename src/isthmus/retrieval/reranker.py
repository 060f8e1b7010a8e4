"""The best of a ranking scored again by a cross-encoder, together with the query."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Protocol

import numpy as np
import numpy.typing as npt
from pydantic import Field

from isthmus.collections import Problems
from isthmus.config import Settings
from isthmus.indexes.filters import Filter
from isthmus.records import Document, Query, Ranking
from isthmus.retrieval.matches import Matched
from isthmus.retrieval.searcher import Retriever


class RerankSettings(Settings):
    """Which cross-encoder reads the candidates, and how many."""

    model: str = Field(description="a cross-encoder: a run of isthmus, a folder or hub name")
    candidates: int = Field(100, ge=1, description="documents per query that it reads")


class Scorer(Protocol):
    """A cross-encoder, as far as re-ranking needs it."""

    def score(self, pairs: Sequence[tuple[str, Document]]) -> npt.NDArray[np.float32]:
        """One score per pair of a query's text and a document."""


class RerankingSearcher:
    """Answers of any searcher, their first `candidates` in the order of a cross-encoder's scores.

    Documents below the candidates follow in the order they had, with scores that go on below.
    """

    def __init__(self, searcher: Retriever, scorer: Scorer, candidates: int = 100) -> None:
        self.searcher = searcher
        self.scorer = scorer
        self.candidates = candidates

    def has_tokens(self, text: str) -> bool:
        """Whether anything of a text is left to search for."""
        return self.searcher.has_tokens(text)

    def documents(self, ids: Sequence[str], query: str | None = None) -> list[Document]:
        """The documents with these ids; of long ones, the best passage for the query."""
        return self.searcher.documents(ids, query)

    def matched(self, query: str, shown: Sequence[Document]) -> list[Matched | None]:
        """How each of these meets the query, word by word."""
        return self.searcher.matched(query, shown)

    def scores(self, pairs: Sequence[tuple[str, Document]]) -> npt.NDArray[np.float32]:
        """One score per pair of a query's text and a document."""
        return self.scorer.score(pairs)

    def search(
        self,
        queries: Sequence[Query],
        depth: int = 10,
        problems: Problems | None = None,
        filter: Filter | None = None,  # noqa: A002 (the word that users know)
    ) -> list[Ranking]:
        """One ranking per query, at most `depth` long; empty for queries skipped as problems."""
        found = self.searcher.search(queries, max(depth, self.candidates), problems, filter)
        pairs = [
            (query.text, document)
            for query, ranking in zip(queries, found, strict=True)
            for document in self.documents(ranking.document_ids[: self.candidates], query.text)
        ]
        scores = iter(self.scores(pairs).tolist())  # of all queries: better filled batches
        return [self._reordered(ranking, scores).top(depth) for ranking in found]

    def _reordered(self, ranking: Ranking, scores: Iterator[float]) -> Ranking:
        first = ranking.document_ids[: self.candidates]
        scored = dict(zip(first, islice(scores, len(first)), strict=True))
        read = Ranking.sorted(ranking.query_id, scored)
        rest = ranking.document_ids[self.candidates :]
        lowest = min(read.scores, default=0.0)
        return Ranking(
            ranking.query_id,
            read.document_ids + rest,
            read.scores + tuple(lowest - place for place in range(1, len(rest) + 1)),
        )
