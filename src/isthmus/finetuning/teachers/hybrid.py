"""BM25 and an encoder together as teacher: pseudo-labels where there is no re-ranker."""

from __future__ import annotations

import numpy as np
from pydantic import Field

from isthmus.config import Settings
from isthmus.finetuning.mining.candidates import (
    NOTHING,
    Candidates,
    Rows,
    Scores,
    TrainingCorpus,
    candidates,
)
from isthmus.finetuning.negatives.bm25 import Bm25
from isthmus.finetuning.negatives.retriever import Retriever
from isthmus.finetuning.pairs import LabelledQueries
from isthmus.finetuning.teachers._base import Teacher, TeacherSource


class HybridSettings(Settings):
    """The encoder, what it counts beside BM25, and how deep both rank."""

    retriever: str = Field(description="an encoder, such as the student as it was before training")
    weight: float = Field(0.5, ge=0, le=1, description="of the encoder; BM25 has the rest")
    depth: int = Field(1000, ge=2, description="documents that each ranks for a query")


class Hybrid(TeacherSource):
    """Adds the scores of BM25 and of an encoder, each in standard deviations of its ranking.

    A document beyond the depth of a ranking is scored as its last one.
    """

    Settings = HybridSettings

    def origin(self) -> str:
        """A digest of the encoder's weights, or a hub name."""
        return self._retriever().origin()

    def open(self, corpus: TrainingCorpus) -> Teacher:
        """Both rankers over indexes in the cache."""
        given: HybridSettings = self.settings
        rankers = [Bm25(Bm25.Settings()).open(corpus), self._retriever().open(corpus)]
        weights = (1 - given.weight, given.weight)

        def scores(labelled: LabelledQueries, rows: Rows) -> Scores:
            total = np.zeros(rows.shape, np.float32)
            for ranker, weight in zip(rankers, weights, strict=True):
                total += weight * standard_scores(
                    candidates(ranker, corpus, labelled.queries, given.depth), rows
                )
            total[rows == NOTHING] = np.nan
            return total

        return Teacher(
            "\n".join([*(one.fingerprint for one in rankers), given.model_dump_json()]), scores
        )

    def _retriever(self) -> Retriever:
        found = Retriever(Retriever.Settings(model=self.settings.retriever))
        found.where = "teacher.retriever"
        return found


def standard_scores(found: Candidates, rows: Rows) -> Scores:
    """Each row's score in its query's ranking, in standard deviations from the ranking's mean.

    A row that the ranking lacks has the lowest score of it; where there is no ranking, or all of it
    scores alike, every row has 0.
    """
    scores = np.zeros(rows.shape, np.float32)
    for number, wanted in enumerate(rows):
        count = int((found.rows[number] != NOTHING).sum())
        values = np.asarray(found.scores[number, :count], np.float64)
        if not count or not (spread := values.std()):
            continue
        values = (values - values.mean()) / spread
        order = np.argsort(found.rows[number, :count])
        ranked = found.rows[number, :count][order]
        place = np.minimum(np.searchsorted(ranked, wanted), count - 1)
        scores[number] = np.where(ranked[place] == wanted, values[order][place], values.min())
    return scores
