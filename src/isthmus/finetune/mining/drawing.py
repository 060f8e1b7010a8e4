"""Whose turn it is: which candidates become the negatives of an epoch."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from isthmus.finetune.mining.candidates import Rows
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

    A source's candidates take turns: none comes again before all had theirs. No text is twice in a
    group. Where candidates are too few for a group, random documents fill it.
    """
    width = sum(counts)
    rows = np.empty((len(positives), epochs * width), dtype=np.int32)
    random = np.zeros(rows.shape, dtype=np.bool_)
    for number, relevant in enumerate(positives):
        # Another than those that shuffled the candidates of this query.
        generator = np.random.default_rng([seed, number, len(queues)])
        waiting = [deque(queue[number].tolist()) for queue in queues]
        drawn: list[int] = []
        for _ in range(epochs):
            taken = set(corpus.keys[list(relevant)].tolist())
            for queue, count in zip(waiting, counts, strict=True):
                found = _next(queue, count, corpus, taken)
                drawn += found
                for _ in range(count - len(found)):
                    random[number, len(drawn)] = True
                    drawn.append(_random_other(generator, corpus, taken))
        rows[number] = drawn
    return rows, random


def _next(queue: deque[int], count: int, corpus: TokenisedCorpus, taken: set[int]) -> list[int]:
    """The next `count` whose text is not in the group yet; others keep their place."""
    found: list[int] = []
    passed_over: list[int] = []
    while queue and len(found) < count:
        row = queue.popleft()
        key = int(corpus.keys[row])
        (passed_over if key in taken else found).append(row)
        taken.add(key)
    queue.extendleft(reversed(passed_over))
    queue.extend(found)
    return found


def _random_other(generator: np.random.Generator, corpus: TokenisedCorpus, taken: set[int]) -> int:
    for _ in range(1000):
        row = int(generator.integers(len(corpus)))
        key = int(corpus.keys[row])
        if key not in taken:
            taken.add(key)
            return row
    return row  # there are too few documents; the loss leaves copies of a positive out
