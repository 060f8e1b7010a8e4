"""Draws the negatives of each epoch from queues of candidates."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from isthmus.finetuning.mining.candidates import Rows
from isthmus.text.corpus import TokenisedCorpus


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
