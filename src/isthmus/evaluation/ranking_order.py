"""The one order in which every measure reads a ranking."""

from __future__ import annotations

import math
from collections import Counter

from isthmus.errors import InputError
from isthmus.records import Ranking


def best_first(ranking: Ranking, run: str) -> list[str]:
    """The document ids by falling score, equal scores by document id.

    A score that is not a number and a document that stands twice have no place in an order:
    both are refused, for either would silently change what is measured.
    """
    scores = dict(ranking)
    if len(scores) < len(ranking):
        twice = Counter(ranking.document_ids).most_common(1)[0][0]
        raise InputError(
            f"run {run!r}: document {twice!r} is retrieved twice for query {ranking.query_id!r}",
            "keep the better of the two lines",
        )
    if any(map(math.isnan, ranking.scores)):
        unscored = next(document for document, score in ranking if math.isnan(score))
        raise InputError(
            f"run {run!r}: the score of document {unscored!r} for query {ranking.query_id!r} is "
            "not a number",
            "find out why the system that wrote the run computed no score",
        )
    return list(Ranking.sorted(ranking.query_id, scores).document_ids)
