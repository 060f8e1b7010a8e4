"""Several rankings of one query made into one."""

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
fusion = fusions.register


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


@fusion("raw_sum")
def raw_sum(ranking: Ranking) -> Votes:
    """Weighted sum of scores as they are, for systems whose scores are of one scale.

    The scores themselves; a document not in the ranking scores at most its lowest: that.
    """
    return Votes(dict(ranking), min(ranking.scores))


@fusion("weighted_sum")
def weighted_sum(ranking: Ranking) -> Votes:
    """Weighted sum of scores, each ranking first brought to the range 0 to 1.

    The lowest score of the ranking as 0 and the highest as 1; 0 for documents not in it.

    BM25 scores grow with the length of the query and inner products with the training of the
    encoder, so that a weight tuned on raw scores would mean something else for every query. A
    ranking whose scores are all equal becomes all 1: retrieved counts more than not retrieved.
    """
    low, high = min(ranking.scores), max(ranking.scores)
    width = high - low
    return Votes({d: (score - low) / width if width else 1.0 for d, score in ranking})


@fusion("reciprocal_rank")
def reciprocal_rank(ranking: Ranking, k: float = 60) -> Votes:
    """Reciprocal-rank fusion: a sum of 1 / (k + rank), whatever the scores were.

    1 / (k + rank), ranks from 1; nothing for a document that was not retrieved.

    Cormack, Clarke and Büttcher (SIGIR 2009) with k = 60 as there; weights 1 give their formula.
    """
    ranked = enumerate(ranking.document_ids, start=1)
    return Votes({document_id: 1 / (k + rank) for rank, document_id in ranked})
