"""Reciprocal-rank fusion: a sum of 1 / (k + rank), whatever the scores were."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

from isthmus.records import Ranking


def reciprocal_rank(
    rankings: Sequence[Ranking], weights: Sequence[float], k: float = 60
) -> Ranking:
    """The documents of all rankings by sum over systems of weight / (k + rank), ranks from 1.

    Cormack, Clarke and Büttcher (SIGIR 2009) with k = 60 as there; weights 1 give their formula.
    A document that a system did not retrieve gets nothing from it. Systems of weight 0 are left
    out altogether.
    """
    parts: dict[str, list[float]] = defaultdict(list)
    for ranking, weight in zip(rankings, weights, strict=True):
        if weight:
            for rank, document_id in enumerate(ranking.document_ids, start=1):
                parts[document_id].append(weight / (k + rank))
    # fsum rounds once, so that the order in which systems are named cannot break a tie.
    return Ranking.sorted(rankings[0].query_id, {d: math.fsum(p) for d, p in parts.items()})
