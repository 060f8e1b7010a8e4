"""Weighted sum of scores, each ranking first brought to the range 0 to 1."""

from __future__ import annotations

from isthmus.records import Ranking
from isthmus.retrieval.fusion import Votes


def weighted_sum(ranking: Ranking) -> Votes:
    """The lowest score of the ranking as 0 and the highest as 1; 0 for documents not in it.

    BM25 scores grow with the length of the query and inner products with the training of the
    encoder, so that a weight tuned on raw scores would mean something else for every query. A
    ranking whose scores are all equal becomes all 1: retrieved counts more than not retrieved.
    """
    low, high = min(ranking.scores), max(ranking.scores)
    width = high - low
    return Votes({d: (score - low) / width if width else 1.0 for d, score in ranking})
