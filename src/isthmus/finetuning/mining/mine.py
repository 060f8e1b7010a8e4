"""From rankings to negatives: what is cut off, what is removed, what is drawn."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from isthmus.config import Settings
from isthmus.errors import SettingsError
from isthmus.finetuning.mining.candidates import (
    NOTHING,
    Candidates,
    Rows,
    Source,
    TrainingCorpus,
    candidates,
)
from isthmus.finetuning.mining.draws import draw
from isthmus.finetuning.mining.margins import approved, highest_allowed, lowest_ranked
from isthmus.finetuning.pairs import LabelledQueries
from isthmus.finetuning.teachers._base import Teacher
from isthmus.progress import notice
from isthmus.registry import Registry
from isthmus.text.corpus import TokenisedCorpus
from isthmus.training.settings import TrainingSettings

NEGATIVES = Registry("isthmus.finetuning.negatives", "source of negatives")


class MiningSettings(Settings):
    """Which part of a ranking negatives are drawn from."""

    num_negatives: int = Field(15, ge=1, description="per query and epoch")
    range_min: int = Field(0, ge=0, description="ranks skipped at the top")
    range_max: int = Field(1000, ge=1, description="the deepest rank considered")
    absolute_margin: float | None = Field(
        None, ge=0, description="how far below the positive's score a negative's must lie"
    )
    relative_margin: float | None = Field(
        None, ge=0, description="the same, as a share of the positive's score"
    )
    margin_by: Literal["source", "teacher"] = Field(
        "source", description="whose scores the margins compare"
    )

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.range_min >= self.range_max:
            raise ValueError("range_min must be below range_max")
        if self.margin_by == "teacher" and not self.has_margin:
            raise ValueError("margin_by: teacher needs absolute_margin or relative_margin")
        return self

    @property
    def has_margin(self) -> bool:
        """Whether scores decide what may be a negative."""
        return self.absolute_margin is not None or self.relative_margin is not None


def negative_sources(chosen: Any, teacher: bool) -> list[Source]:
    """The sources that settings name (one, several or none), checked before anything is read."""
    several = isinstance(chosen, list)
    sources = []
    for number, values in enumerate(chosen if several else [chosen] if chosen else []):
        where = f"negatives.{number}" if several else "negatives"
        values = dict(values)
        source = NEGATIVES.load(str(values.pop("name", None)), where)
        settings = source.Settings.parse(values, where, under=where)
        if settings.margin_by == "teacher" and not teacher:
            raise SettingsError(
                f"{where}.margin_by = 'teacher', but there is no teacher",
                where=f"{where}.margin_by",
                allowed="source, or teacher where the stage has one",
                remedy="--set teacher.name=cross_encoder --set teacher.model=NAME, or "
                f"--set {where}.margin_by=source",
            )
        sources.append(source(settings))
    return sources


def group_size(sources: Iterable[Source]) -> int:
    """The passages of a query: one positive and the negatives of every source."""
    settings: list[MiningSettings] = [source.settings for source in sources]
    return 1 + sum(chosen.num_negatives for chosen in settings)


def epochs_of(
    training: TrainingSettings, queries: int, sources: Iterable[Source], processes: int = 1
) -> int:
    """How many epochs have negatives of their own: those that training begins.

    Where steps are counted these may be thousands: no more than it takes to draw all candidates.
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

    An epoch's negatives stand together, source after source; `random` marks what no source gave.
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
    """Every epoch's negatives of every query, from all sources together."""
    found = [
        candidates(source.open(corpus), corpus, labelled.queries, source.settings.range_max)
        for source in sources
    ]
    settings: list[MiningSettings] = [source.settings for source in sources]
    queues = []
    for place, (chosen, ranked) in enumerate(zip(settings, found, strict=True)):
        # A source may have to pass over what all others have drawn.
        most = epochs * (group_size(sources) - 1)
        turns = shuffled(ranked, labelled, corpus.tokenised, chosen, (seed, place))
        if chosen.margin_by == "teacher":
            assert teacher is not None, "settings were checked"
            turns = approved(turns, labelled, chosen, most, teacher)
        queues.append([turn[:most] for turn in turns])
    counts = [chosen.num_negatives for chosen in settings]
    rows, random = draw(queues, labelled.positives, corpus.tokenised, counts, epochs, seed)
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

    Those between range_min and range_max, without the query's positives and documents of the same
    text, and below the margin where the source's own scores decide.
    """
    by_score = settings.has_margin and settings.margin_by == "source"
    turns = []
    for number, positives in enumerate(labelled.positives):
        rows, scores = ranked.rows[number], ranked.scores[number]
        fit = rows != NOTHING
        fit[: settings.range_min] = False
        if by_score:
            fit &= scores <= highest_allowed(lowest_ranked(rows, scores, positives), settings)
        kept = np.asarray(rows[fit])
        kept = kept[~np.isin(corpus.keys[kept], corpus.keys[positives])]
        generator = np.random.default_rng([seed[0], number, *seed[1:]])
        turns.append(generator.permutation(kept))
    return turns
