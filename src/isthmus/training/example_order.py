"""The order of examples in an epoch."""

from __future__ import annotations

from collections.abc import Iterator

from torch.utils.data import Sampler

from isthmus.text.batches import bucketed_order, mixed_order
from isthmus.training.task import Examples


class EpochOrder(Sampler[tuple[int, int]]):
    """The (epoch, row) pairs of one epoch.

    Batches hold similar lengths, for less padding; steady examples are mixed instead.
    """

    def __init__(self, examples: Examples, batch: int, seed: int) -> None:
        self.examples = examples
        self.batch = batch
        self.seed = seed
        self.epoch = 0

    def __iter__(self) -> Iterator[tuple[int, int]]:
        arrange = mixed_order if self.examples.steady else bucketed_order
        order = arrange(self.examples.lengths, self.batch, self.seed, self.epoch)
        return ((self.epoch, int(row)) for row in order)

    def __len__(self) -> int:
        rows = len(self.examples)
        return rows if rows <= self.batch else rows // self.batch * self.batch
