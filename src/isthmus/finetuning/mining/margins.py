"""Margins between the scores of a positive and its negatives, by the source or a teacher."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from isthmus.finetuning.mining.candidates import Rows, Scores
from isthmus.finetuning.mining.settings import MiningSettings
from isthmus.finetuning.pairs import LabelledQueries
from isthmus.finetuning.teachers._base import Teacher, padded

_ASKED_AT_ONCE = 16  # candidates of a query that a teacher scores in one round, at least


def lowest_ranked(rows: Rows, scores: Scores, positives: Sequence[int]) -> float:
    """The lowest score of a positive; -inf, which lets no negative through, if one is unranked."""
    places = np.isin(rows, positives)
    found = float(scores[places].min(initial=np.inf))
    return found if places.sum() == len(set(positives)) else -np.inf


def highest_allowed(positive: npt.ArrayLike, settings: MiningSettings) -> npt.NDArray[np.float64]:
    """The highest score that a negative may have beside the query's lowest scored positive.

    min(p - absolute_margin, p - relative_margin · |p|), as mine_hard_negatives of
    sentence-transformers has it: with |p|, scores below 0 are no exception.
    """
    scores = np.asarray(positive, dtype=np.float64)
    # -inf times 0 would be NaN.
    share = np.abs(np.where(np.isfinite(scores), scores, 0.0)) * (settings.relative_margin or 0.0)
    return scores - np.maximum(share, settings.absolute_margin or 0.0)


def approved(
    turns: Sequence[Rows],
    labelled: LabelledQueries,
    settings: MiningSettings,
    most: int,
    teacher: Teacher,
) -> list[Rows]:
    """The first `most` candidates of each query whose score by the teacher is below the margin.

    Teachers are slow: each round scores as many candidates as are still missing, so that those
    which would never be drawn are not scored.
    """
    allowed = highest_allowed(lowest_by(teacher, labelled), settings)
    kept: list[list[int]] = [[] for _ in turns]
    seen = np.zeros(len(turns), dtype=np.int64)
    while True:
        unfinished = [
            number
            for number, turn in enumerate(turns)
            if seen[number] < len(turn) and len(kept[number]) < most
        ]
        if not unfinished:
            return [np.array(rows, dtype=np.int32) for rows in kept]
        batch = []
        for number in unfinished:
            size = max(most - len(kept[number]), _ASKED_AT_ONCE)
            batch.append(turns[number][seen[number] : seen[number] + size])
            seen[number] += len(batch[-1])
        scores = teacher.scores(labelled.some(unfinished), padded(batch))
        for number, rows, given in zip(unfinished, batch, scores, strict=True):
            kept[number] += rows[given[: len(rows)] <= allowed[number]].tolist()


def lowest_by(teacher: Teacher, labelled: LabelledQueries) -> Scores:
    """The teacher's score of each query's lowest scored positive."""
    scores: Scores = np.nanmin(teacher.scores(labelled, padded(labelled.positives)), axis=1)
    return scores
