"""The interface of what is trained: a module with named losses, and its examples."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn
from torch.utils.data import Sampler

from isthmus.text.order import bucketed_order, mixed_order

Batch = dict[str, Tensor]


class Task(nn.Module, ABC):
    """A model together with its losses.

    A loss is a sum over items (labelled positions, texts, queries). The trainer divides it by the
    number of items of the whole optimiser step, over all passes and processes, so that the way
    a batch is split changes nothing.
    """

    # Whether a pass depends only on its batch, and never synchronises the device.
    capturable = False
    _settled: list[nn.Parameter] | None = None
    _mode: bool | None = None

    def settle(self) -> None:
        """Caches the parameter list; call once the model is complete.

        A trainer lists parameters three times a step, some milliseconds with 200 modules.
        """
        self._settled = list(super().parameters())

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        """The parameters as torch lists them, cached after `settle`."""
        known = self._settled if recurse else None
        return super().parameters(recurse) if known is None else iter(known)

    def train(self, mode: bool = True) -> Self:
        """Sets the mode as torch does, skipped where nothing changes."""
        if self._mode is not mode or any(part.training is not mode for part in self.children()):
            super().train(mode)
            self._mode = mode
        return self

    def prepare(self, batch: Batch) -> Batch:
        """Adds everything random to the batch; runs on the training device, without gradient."""
        return batch

    @abstractmethod
    def counts(self, batch: Batch) -> dict[str, Tensor]:
        """How many items each loss sums over, known before the forward pass."""

    @abstractmethod
    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """The sum of each loss, with the count of its name up to a slash.

        Sums without a weight (usually `LOSS/METRIC`) are only logged.
        """

    @abstractmethod
    def weights(self, progress: float) -> Mapping[str, float | Tensor]:
        """The weight of each loss; `progress` is 0 at the first optimiser step, 1 at the last."""

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Writes everything that training changed, as safetensors."""

    @abstractmethod
    def restore(self, folder: Path) -> None:
        """Loads what `save` wrote."""


class Examples(ABC):
    """Training examples; that of an epoch and row is always the same."""

    # Whether batches have few different shapes, so that a step can be captured for each.
    steady = False

    @property
    @abstractmethod
    def lengths(self) -> npt.NDArray[np.integer]:
        """A length per row, to batch similar lengths."""

    @abstractmethod
    def __getitem__(self, key: tuple[int, int]) -> Any:
        """The example of (epoch, row)."""

    @abstractmethod
    def collate(self, examples: list[Any]) -> Batch:
        """Padded tensors of some examples."""

    def __len__(self) -> int:
        return len(self.lengths)


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
