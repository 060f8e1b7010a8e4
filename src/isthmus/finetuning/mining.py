"""Mines negatives: candidates are ranked, filtered, shuffled and drawn for every epoch."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from isthmus.finetuning.candidates import (
    NOTHING,
    Candidates,
    MiningSettings,
    Rows,
    Scores,
    TrainingCorpus,
    candidates,
)
from isthmus.finetuning.negatives import Source
from isthmus.finetuning.pairs import LabelledQueries
from isthmus.finetuning.teachers import Teacher, padded
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


def draw(
    queues: Sequence[Sequence[Rows]],
    positives: Sequence[Sequence[int]],
    corpus: TokenisedCorpus,
    counts: Sequence[int],
    epochs: int,
    seed: int,
) -> tuple[Rows, npt.NDArray[np.bool_]]:
    """Every query's negatives, epoch after epoch, and which of them are random.

    A source's candidates rotate: none is drawn again before all were, and those that another source
    has drawn meanwhile come after those that none has. No text is twice in a group. Random
    documents fill a group that has too few candidates.
    """
    width = sum(counts)
    rows = np.empty((len(positives), epochs * width), dtype=np.int32)
    random = np.zeros(rows.shape, dtype=np.bool_)
    for number, relevant in enumerate(positives):
        # Another seed than those that shuffled the candidates of this query.
        generator = np.random.default_rng([seed, number, len(queues)])
        waiting = [_Queue(queue[number]) for queue in queues]
        drawn: list[int] = []
        turns: Counter[int] = Counter()
        for _ in range(epochs):
            taken = set(corpus.keys[list(relevant)].tolist())
            for queue, count in zip(waiting, counts, strict=True):
                found = queue.next(count, corpus, taken, turns)
                drawn += found
                for _ in range(count - len(found)):
                    random[number, len(drawn)] = True
                    drawn.append(_random_other(generator, corpus, taken))
        rows[number] = drawn
    return rows, random


class _Queue:
    """The candidates of one source: those still to draw in this round, and those drawn."""

    def __init__(self, rows: Rows) -> None:
        # With each row, how often it was drawn, from all queues, before it was queued here.
        self.waiting = deque((row, 0) for row in rows.tolist())
        self.done: deque[tuple[int, int]] = deque()

    def next(
        self, count: int, corpus: TokenisedCorpus, taken: set[int], turns: Counter[int]
    ) -> list[int]:
        """The next `count` rows whose text is not in the group yet; others keep their place.

        A row that another queue has drawn meanwhile moves to the end.
        """
        found: list[int] = []
        passed_over: list[tuple[int, int]] = []
        while len(found) < count and (self.waiting or self.done):
            if not self.waiting:
                self.waiting, self.done = self.done, deque()
            row, had = self.waiting.popleft()
            key = int(corpus.keys[row])
            if turns[row] > had:
                self.waiting.append((row, turns[row]))
            elif key in taken:
                passed_over.append((row, had))
            else:
                found.append(row)
                taken.add(key)
        turns.update(found)
        self.waiting.extendleft(reversed(passed_over))
        self.done.extend((row, turns[row]) for row in found)
        return found


def _random_other(generator: np.random.Generator, corpus: TokenisedCorpus, taken: set[int]) -> int:
    for _ in range(1000):
        row = int(generator.integers(len(corpus)))
        key = int(corpus.keys[row])
        if key not in taken:
            taken.add(key)
            return row
    return row  # there are too few documents; the loss leaves copies of a positive out
