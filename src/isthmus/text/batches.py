"""The order in which examples are seen: shuffled, and of like length side by side or mixed."""

from __future__ import annotations

from collections.abc import Sequence

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
