"""Weighted sum of scores as they are, for systems whose scores are of one scale."""

from __future__ import annotations

from isthmus.records import Ranking
from isthmus.retrieval.fusion import Votes


def raw_sum(ranking: Ranking) -> Votes:
    """The scores themselves; a document not in the ranking scores at most its lowest: that."""
    return Votes(dict(ranking), min(ranking.scores))
