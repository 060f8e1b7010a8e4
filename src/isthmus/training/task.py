"""What can be trained: a module that names its losses, counts their items, returns their sums."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn

Batch = dict[str, Tensor]


class Task(nn.Module, ABC):
    """A model together with its losses.

    A loss is a sum over items (labelled positions, texts, queries). The trainer divides it by the
    number of items of the whole optimiser step, over all passes and processes, so that the way
    a batch is split changes nothing.
    """

    # Whether a pass depends on its batch's shapes and numbers alone, and never asks the device.
    capturable = False
    _settled: list[nn.Parameter] | None = None
    _mode: bool | None = None

    def settle(self) -> None:
        """From now on no module or parameter comes or goes.

        A trainer asks for all of them three times a step: some milliseconds with 200 modules.
        """
        self._settled = list(super().parameters())

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        """As torch has it; listed once, behind `settle`."""
        known = self._settled if recurse else None
        return super().parameters(recurse) if known is None else iter(known)

    def train(self, mode: bool = True) -> Self:
        """As torch has it, where anything changes."""
        if self._mode is not mode or any(part.training is not mode for part in self.children()):
            super().train(mode)
            self._mode = mode
        return self

    def prepare(self, batch: Batch) -> Batch:
        """The batch with everything drawn at random added; on the training device, no gradient."""
        return batch

    @abstractmethod
    def counts(self, batch: Batch) -> dict[str, Tensor]:
        """How many items each loss sums over, known before the forward pass."""

    @abstractmethod
    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """The sum of each loss, with the count of its name up to a slash.

        What has no weight (`LOSS/METRIC`, as a rule) is only logged.
        """

    def weights(self, progress: float) -> Mapping[str, float | Tensor]:
        """The weight of each loss; `progress` is 0 at the first optimiser step, 1 at the last."""
        return dict.fromkeys(self.loss_names(), 1.0)

    @abstractmethod
    def loss_names(self) -> Sequence[str]:
        """The losses that are added up."""

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Writes everything that training changed, as safetensors."""

    @abstractmethod
    def restore(self, folder: Path) -> None:
        """Loads what `save` wrote."""


class Examples(ABC):
    """What a task is trained on; the example of an epoch and row is always the same."""

    # Whether batches are to have few different shapes, of each of which a step can be captured.
    steady = False

    @property
    @abstractmethod
    def lengths(self) -> npt.NDArray[np.integer]:
        """A length per row, to put like beside like."""

    @abstractmethod
    def __getitem__(self, key: tuple[int, int]) -> Any:
        """The example of (epoch, row)."""

    @abstractmethod
    def collate(self, examples: list[Any]) -> Batch:
        """Padded tensors of some examples."""

    def __len__(self) -> int:
        return len(self.lengths)
