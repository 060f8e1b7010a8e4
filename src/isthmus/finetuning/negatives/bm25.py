"""Negatives from BM25: what shares words with the query and was not judged relevant."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from isthmus.finetuning.mining.candidates import MiningSettings, Ranker, TrainingCorpus, answers
from isthmus.finetuning.negatives._base import Source
from isthmus.indexes.manifest import Bm25Settings
from isthmus.records import Query, Ranking


class Bm25NegativesSettings(MiningSettings):
    """Which candidates are kept, and how they are scored."""

    # Not the default of an index: what Anserini mines with, and published results were trained on.
    scoring: Bm25Settings = Bm25Settings(k1=0.9, b=0.4)


class Bm25(Source):
    """Ranks the corpus by BM25."""

    Settings = Bm25NegativesSettings

    def open(self, corpus: TrainingCorpus) -> Ranker:
        """BM25 over an index in the cache."""
        scoring: Bm25Settings = self.settings.scoring
        fingerprint = f"bm25 titles={corpus.titles} {scoring.model_dump_json()}"

        def rank(queries: Sequence[Query], depth: int) -> Iterator[Ranking]:
            searcher = corpus.searcher(fingerprint, titles=corpus.titles, bm25=scoring)
            return answers(searcher, queries, depth)

        return Ranker(fingerprint, rank)
