"""Negatives from BM25: what shares words with the query and was not judged relevant."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from isthmus.finetuning.mining.candidates import Ranker, TrainingCorpus, answers, searched
from isthmus.finetuning.mining.settings import MiningSettings
from isthmus.finetuning.negatives._base import Source
from isthmus.indexes.manifest import Bm25Settings
from isthmus.records import Query, Ranking
from isthmus.retrieval.searcher import open_searcher
from isthmus.retrieval.verbs.index import IndexSettings


class Bm25NegativesSettings(MiningSettings):
    """Which candidates are kept, and how they are scored."""

    scoring: Bm25Settings = Bm25Settings()


class Bm25(Source):
    """Ranks the corpus by BM25."""

    Settings = Bm25NegativesSettings

    def open(self, corpus: TrainingCorpus) -> Ranker:
        """BM25 over an index in the cache."""
        scoring: Bm25Settings = self.settings.scoring
        settings = IndexSettings(
            titles=corpus.titles, texts=False, bm25=scoring, **dict(corpus.reading)
        )
        fingerprint = f"bm25 titles={corpus.titles} {scoring.model_dump_json()}"

        def rank(queries: Sequence[Query], depth: int) -> Iterator[Ranking]:
            folder = searched(corpus, fingerprint, None, settings)
            return answers(open_searcher(folder), queries, depth)

        return Ranker(fingerprint, rank)
