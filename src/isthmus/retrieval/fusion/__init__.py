"""Several rankings of one query made into one; one file per way of making scores comparable."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from isthmus.records import Ranking
from isthmus.registry import Registry


class Votes(NamedTuple):
    """What one system gives each document it found, and what it gives every other."""

    found: Mapping[str, float]
    others: float = 0.0


Fusion = Callable[[Ranking], Votes]
"""A ranking that is not empty, to votes that can be added to those of other systems."""

fusions = Registry("isthmus.retrieval.fusion", "fusion")


def fuse(
    rankings: Sequence[Ranking],
    weights: Sequence[float],
    fusion: Fusion,
    depth: int | None = None,
) -> Ranking:
    """The documents of all rankings of a query by the weighted sum of their votes.

    Empty rankings and systems of weight 0 are left out altogether.
    """
    systems = [
        (weight, fusion(ranking))
        for ranking, weight in zip(rankings, weights, strict=True)
        if weight and len(ranking)
    ]
    documents = list(dict.fromkeys(chain.from_iterable(votes.found for _, votes in systems)))
    columns = [
        [weight * votes.found.get(document_id, votes.others) for document_id in documents]
        for weight, votes in systems
    ]
    # fsum rounds once, so that the order in which systems are named cannot break a tie.
    sums = map(math.fsum, zip(*columns, strict=True))
    return Ranking.sorted(rankings[0].query_id, dict(zip(documents, sums, strict=True)), depth)
