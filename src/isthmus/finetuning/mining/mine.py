"""Mines negatives: candidates are ranked, filtered, shuffled and drawn for every epoch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from isthmus.finetuning.mining.candidates import (
    NOTHING,
    Candidates,
    Rows,
    TrainingCorpus,
    candidates,
)
from isthmus.finetuning.mining.draws import draw
from isthmus.finetuning.mining.margins import approved, highest_allowed, lowest_ranked
from isthmus.finetuning.mining.settings import MiningSettings
from isthmus.finetuning.negatives._base import Source
from isthmus.finetuning.pairs import LabelledQueries
from isthmus.finetuning.teachers._base import Teacher
from isthmus.progress import notice
from isthmus.text.corpus import TokenisedCorpus
from isthmus.training.settings import TrainingSettings


def epochs_of(
    training: TrainingSettings, queries: int, sources: Iterable[Source], processes: int = 1
) -> int:
    """The number of epochs with different negatives: all that training begins.

    With max_steps that may be thousands: then no more than it takes to draw all candidates.
    """
    if training.max_steps is None:
        return math.ceil(training.num_train_epochs)
    step = training.per_device_train_batch_size * training.gradient_accumulation_steps * processes
    begun = math.ceil(training.max_steps / max(1, queries // step))
    settings: list[MiningSettings] = [source.settings for source in sources]
    turns = max(math.ceil(chosen.range_max / chosen.num_negatives) for chosen in settings)
    return min(begun, turns)


@dataclass(frozen=True)
class Mined:
    """The negatives of each query, [queries, epochs · (group - 1)], and where they come from.

    An epoch's negatives stand together, source after source; `random` marks random documents.
    """

    rows: Rows
    random: npt.NDArray[np.bool_]
    candidates: list[Candidates]


def mine(
    sources: Sequence[Source],
    corpus: TrainingCorpus,
    labelled: LabelledQueries,
    epochs: int,
    seed: int,
    teacher: Teacher | None = None,
) -> Mined:
    """The negatives of every query and epoch, from all sources."""
    found = [
        candidates(source.open(corpus), corpus, labelled.queries, source.settings.range_max)
        for source in sources
    ]
    settings: list[MiningSettings] = [source.settings for source in sources]
    counts = [chosen.num_negatives for chosen in settings]
    queues = []
    for place, (chosen, ranked) in enumerate(zip(settings, found, strict=True)):
        # A source may have to pass over what all others have drawn.
        most = epochs * sum(counts)
        turns = shuffled(ranked, labelled, corpus.tokenised, chosen, (seed, place))
        if chosen.margin_by == "teacher":
            assert teacher is not None, "settings were checked"
            turns = approved(turns, labelled, chosen, most, teacher)
        queues.append([turn[:most] for turn in turns])
    rows, random = draw(queues, labelled.relevant, corpus.tokenised, counts, epochs, seed)
    if random.any():
        notice(
            f"negatives: {random.mean():.1%} are random documents, for the {random.any(1).sum():,} "
            f"of {len(rows):,} queries that have too few candidates"
        )
    return Mined(rows, random, found)


def shuffled(
    ranked: Candidates,
    labelled: LabelledQueries,
    corpus: TokenisedCorpus,
    settings: MiningSettings,
    seed: Sequence[int],
) -> list[Rows]:
    """The candidates of each query that may be negatives, in the order they are drawn in.

    Those between range_min and range_max, without all passages of relevant documents and documents
    of the same text, and below the margin where the source's own scores decide.
    """
    by_score = settings.has_margin and settings.margin_by == "source"
    turns = []
    for number, (positives, relevant) in enumerate(
        zip(labelled.positives, labelled.relevant, strict=True)
    ):
        rows, scores = ranked.rows[number], ranked.scores[number]
        fit = rows != NOTHING
        fit[: settings.range_min] = False
        if by_score:
            fit &= scores <= highest_allowed(lowest_ranked(rows, scores, positives), settings)
        kept = np.asarray(rows[fit])
        kept = kept[~np.isin(corpus.keys[kept], corpus.keys[relevant])]
        generator = np.random.default_rng([seed[0], number, *seed[1:]])
        turns.append(generator.permutation(kept))
    return turns
