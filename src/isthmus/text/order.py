"""The order in which examples are seen, batches of like length, and what truncation cuts off."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

_POOL_BATCHES = 50
Order = npt.NDArray[np.int64]  # of examples


def bucketed_order(
    lengths: Sequence[int] | npt.NDArray[np.integer], batch: int, seed: int, epoch: int
) -> Order:
    """A permutation of the examples of one epoch, cut into whole batches of like lengths.

    Shuffled by (seed, epoch); then, in pools of fifty batches, sorted by length and cut; then
    the batches are shuffled. `batch` is the batch of the whole optimiser step, so the order is the
    same however it is split over devices and accumulation. Examples left over when the last batch
    is not full sit this epoch out (others do in the next); fewer than one batch are all kept.
    """
    generator = np.random.default_rng([seed, epoch])
    order = generator.permutation(len(lengths))
    if len(order) <= batch:
        return order
    order = order[: len(order) // batch * batch]
    known, pool = np.asarray(lengths), batch * _POOL_BATCHES
    pools = (order[start : start + pool] for start in range(0, len(order), pool))
    order = np.concatenate([some[np.argsort(known[some], kind="stable")] for some in pools])
    batches = order.reshape(-1, batch)
    return batches[generator.permutation(len(batches))].reshape(-1)


def mixed_order(
    lengths: Sequence[int] | npt.NDArray[np.integer], batch: int, seed: int, epoch: int
) -> Order:
    """A permutation of the examples of one epoch, whose whole batches have almost the same lengths.

    Shuffled by (seed, epoch) and sorted by length, the examples fall into as many strata as a batch
    has places; every batch draws one of each. What is left over sits out as above.
    """
    generator = np.random.default_rng([seed, epoch])
    order = generator.permutation(len(lengths))
    if len(order) <= batch:
        return order
    order = order[: len(order) // batch * batch]
    order = order[np.argsort(np.asarray(lengths)[order], kind="stable")]
    batches = generator.permuted(order.reshape(batch, -1), axis=1).T
    return generator.permuted(batches, axis=1).reshape(-1)


def length_sorted_batches(
    lengths: Sequence[int] | npt.NDArray[np.integer], tokens: int, texts: int | None = None
) -> list[Order]:
    """Batches of like length, longest first: memory runs out at once or never.

    Padded to its longest, a batch holds at most `tokens`, so all cost about the same; a text that
    is longer than that is alone. Nor does it hold more than `texts`.
    """
    order = np.argsort(-np.asarray(lengths), kind="stable")
    batches, start = [], 0
    while start < len(order):
        size = max(1, tokens // max(1, int(lengths[order[start]])))
        size = size if texts is None else min(size, texts)
        batches.append(order[start : start + size])
        start += size
    return batches


class CutTexts:
    """A count of texts, and of the tokens beyond the first `room` of each.

    Texts come with so many tokens of a prompt, which are not theirs.
    """

    def __init__(self, room: int, prompt: int = 0) -> None:
        self.room = room
        self.prompt = prompt
        self.restart()

    def restart(self) -> None:
        """Counts from nothing again."""
        self.texts = self.cut = self.tokens = self.lost = 0

    def count(self, lengths: Iterable[int]) -> None:
        """Takes in texts of these numbers of tokens."""
        for length in (whole - self.prompt for whole in lengths):
            beyond = max(0, length - self.room)
            self.texts += 1
            self.cut += beyond > 0
            self.tokens += length
            self.lost += beyond

    def add(self, other: CutTexts) -> None:
        """Takes in the texts that another count, whose room it takes over, holds."""
        self.room = other.room
        self.texts += other.texts
        self.cut += other.cut
        self.tokens += other.tokens
        self.lost += other.lost

    def summary(self) -> str:
        """One sentence: how many texts are cut, and the share of all text that is lost."""
        if not self.cut:
            room = f"it reads up to {self.room} tokens"
            return f"the encoder reads all {self.texts:,} texts whole ({room})"
        share = 100 * self.lost / self.tokens
        lost = f"{share:.0f}" if share >= 1 else f"{share:.1g}"
        return (
            f"{self.cut:,} of {self.texts:,} texts are longer than the {self.room} tokens that the "
            f"encoder reads: {lost} % of the text is not seen"
        )
