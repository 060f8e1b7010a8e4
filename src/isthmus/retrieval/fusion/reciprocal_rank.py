"""Reciprocal-rank fusion: a sum of 1 / (k + rank), whatever the scores were."""

from __future__ import annotations

from isthmus.records import Ranking
from isthmus.retrieval.fusion import Votes


def reciprocal_rank(ranking: Ranking, k: float = 60) -> Votes:
    """1 / (k + rank), ranks from 1; nothing for a document that was not retrieved.

    Cormack, Clarke and Büttcher (SIGIR 2009) with k = 60 as there; weights 1 give their formula.
    """
    ranked = enumerate(ranking.document_ids, start=1)
    return Votes({document_id: 1 / (k + rank) for rank, document_id in ranked})
