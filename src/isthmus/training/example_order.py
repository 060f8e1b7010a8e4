"""The order of examples: batches of so many examples, or of so many tokens."""

from __future__ import annotations

from collections.abc import Iterator

from torch.utils.data import Sampler

from isthmus.errors import SettingsError
from isthmus.text.batches import bucketed_order, mixed_order, token_batches
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


class TokenBatches(Sampler[list[tuple[int, int]]]):
    """The batches of one epoch, each of about so many tokens; every epoch has the same number.

    `processes` take batches in turn, so their number is a multiple of it.
    """

    def __init__(self, examples: Examples, tokens: int, seed: int, processes: int = 1) -> None:
        longest = int(examples.lengths.max(initial=0))
        if tokens < longest:
            raise SettingsError(
                f"training.per_device_train_tokens = {tokens} has no room for a text of {longest}",
                where="training.per_device_train_tokens",
                allowed=f"{longest} or more",
                remedy=f"--set training.per_device_train_tokens={max(4096, longest)}, or a smaller "
                "max_length",
            )
        self.examples = examples
        self.seed = seed
        self.epoch = 0
        # Rounded down: batches may be slightly larger, but none is empty.
        total = int(examples.lengths.sum())
        whole = total // tokens
        self.count = max(whole - whole % processes, processes)
        if self.count * longest > total:
            raise SettingsError(
                f"{total:,} tokens are too few for a batch on each of {processes} processes",
                where="training.per_device_train_tokens",
                allowed=f"{processes * longest:,} tokens or more: {processes} texts as long as the "
                f"longest, of {longest:,}",
                remedy="train on fewer processes, or leave per_device_train_tokens out",
            )

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        batches = token_batches(self.examples.lengths, self.count, self.seed, self.epoch)
        return ([(self.epoch, int(row)) for row in batch] for batch in batches)

    def __len__(self) -> int:
        return self.count
