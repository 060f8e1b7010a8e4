"""Weighted sum of scores, each ranking first brought to the range 0 to 1."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from isthmus.records import Ranking


def weighted_sum(
    rankings: Sequence[Ranking],
    weights: Sequence[float],
    normalization: Literal["min_max", "none"] = "min_max",
) -> Ranking:
    """The documents of all rankings by sum over systems of weight * score.

    `min_max` maps each ranking's lowest score to 0 and its highest to 1, per query: BM25 scores
    grow with the length of the query and inner products with the training of the encoder, so
    that a weight tuned on raw scores would mean something else for every query. `none` adds the
    scores as they are, for systems trained to one scale.

    A document missing from a ranking scores at most its lowest entry, and takes that score (0
    under `min_max`); an empty ranking adds nothing. Rankings whose scores are all equal become
    all 1: retrieved counts more than not retrieved. Systems of weight 0 are left out altogether.
    """
    systems = [
        (weight, dict(_normalized(ranking) if normalization == "min_max" else ranking))
        for ranking, weight in zip(rankings, weights, strict=True)
        if weight and len(ranking)
    ]
    lowest = [0.0 if normalization == "min_max" else min(scores.values()) for _, scores in systems]
    documents = {document_id for _, scores in systems for document_id in scores}
    # fsum rounds once, so that the order in which systems are named cannot break a tie.
    fused = {
        document_id: math.fsum(
            weight * scores.get(document_id, low)
            for (weight, scores), low in zip(systems, lowest, strict=True)
        )
        for document_id in documents
    }
    return Ranking.sorted(rankings[0].query_id, fused)


def _normalized(ranking: Ranking) -> Ranking:
    low, high = min(ranking.scores), max(ranking.scores)
    width = high - low
    scores = tuple((score - low) / width if width else 1.0 for score in ranking.scores)
    return Ranking(ranking.query_id, ranking.document_ids, scores)
