"""Whose turn it is: which candidates become the negatives of an epoch."""

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
    """Every query's negatives, an epoch after the other, and which of them are random.

    A source's candidates take turns: none comes again before all had theirs, and what another
    source has drawn meanwhile comes after what none has. No text is twice in a group. Where
    candidates are too few for a group, random documents fill it.
    """
    width = sum(counts)
    rows = np.empty((len(positives), epochs * width), dtype=np.int32)
    random = np.zeros(rows.shape, dtype=np.bool_)
    for number, relevant in enumerate(positives):
        # Another than those that shuffled the candidates of this query.
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
    """The candidates of one source: who waits for a turn in this round, and who had one."""

    def __init__(self, rows: Rows) -> None:
        # With each row, how many turns it had had, in all queues, when it came to wait here.
        self.waiting = deque((row, 0) for row in rows.tolist())
        self.done: deque[tuple[int, int]] = deque()

    def next(
        self, count: int, corpus: TokenisedCorpus, taken: set[int], turns: Counter[int]
    ) -> list[int]:
        """The next `count` whose text is not in the group yet; others keep their place.

        Who had a turn in another queue meanwhile lets all others who wait go first.
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
