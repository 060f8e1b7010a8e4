"""Controls a regularizer's weight until texts have a target number of active terms."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
import transformers
from torch import Tensor

# Both over a whole training, as powers of e: by how much the weight grows when there are always
# twice as many terms as wanted, and by how much the wanted number falls towards the target.
_GAIN = 20.0
_GLIDE = 12.0
_FEWEST = 100  # steps over which both are spread: a short trial must not jump
_FARTHEST = 10.0  # the largest ratio that is believed: a text may have lost all its terms
_COMPARISONS = 20  # of trained and indexed texts in a training


class WeightController:
    """Proportional-integral control of a regularizer's weight, in log space, by active terms.

    After every optimiser step, with the active terms of an average text of all its passes and
    processes, where `wanted` begins with the active terms of the first:

        wanted = max(target, wanted · exp(-glide / steps))
        error = clip(ratio · active / wanted - 1, -1, 1)
        integral += gain / steps · error
        weight = exp(integral + error)

    The integral comes to rest where active terms are right, whatever weight that takes. Terms that
    are lost come back slowly: so `wanted` glides to the target, and the error is added to its
    integral, which damps the oscillation. Both rates are per training, so that a long one
    oscillates no more often than a short one.

    The target is meant for an index, whose texts have another number of terms than those trained
    on: the ratio of the two is measured now and then, and half of a change in its logarithm counts.
    """

    def __init__(self, target: float, weight: float) -> None:
        self.target = target
        self.wanted: Tensor | None = None
        self.integral = torch.tensor(math.log(weight), dtype=torch.float64)
        self.error = torch.zeros_like(self.integral)
        self.ratio = torch.ones_like(self.integral)

    def to(self, device: torch.device) -> None:
        """Moves to a device; from then on, integral and error are changed in place."""
        self.integral, self.error = self.integral.to(device), self.error.to(device)
        self.ratio = self.ratio.to(device)
        self.wanted = None if self.wanted is None else self.wanted.to(device)

    @property
    def weight(self) -> Tensor:
        """The current weight."""
        return (self.integral + self.error).exp()

    def step(self, active: Tensor, steps: int) -> None:
        """Moves the weight by the active terms of one of `steps` optimiser steps.

        All on the device of `active`, so that the host does not synchronise.
        """
        active = active.double() * self.ratio
        steps = max(steps, _FEWEST)
        before = active if self.wanted is None else self.wanted
        self.wanted = (before * math.exp(-_GLIDE / steps)).clamp(min=self.target)
        self.error.copy_((active / self.wanted - 1).clamp(-1, 1))
        self.integral += _GAIN / steps * self.error

    def compare(self, ratio: Tensor) -> None:
        """Updates the ratio of the terms of indexed texts to those of trained texts."""
        ratio = ratio.double().clamp(1 / _FARTHEST, _FARTHEST)
        self.ratio = (self.ratio * ratio).sqrt()

    def state(self) -> dict[str, float | None]:
        """All that changes during training, as numbers."""
        return {
            "wanted": None if self.wanted is None else float(self.wanted),
            "integral": float(self.integral),
            "error": float(self.error),
            "ratio": float(self.ratio),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continues from an earlier state."""
        wanted = state["wanted"]
        self.wanted = None if wanted is None else torch.full_like(self.integral, wanted)
        self.integral.fill_(state["integral"])
        self.error.fill_(state["error"])
        self.ratio = torch.full_like(self.integral, state["ratio"])


class ControlWeights(transformers.TrainerCallback):  # type: ignore[misc]
    """Runs a task's controllers after every optimiser step, before its checkpoint is written.

    Now and then the ratios to indexed texts are measured, on every process with the same result.
    """

    def __init__(self, task: Any, ratios: Callable[[], Mapping[str, Tensor]]) -> None:
        self.task = task
        self.ratios = ratios

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """After every optimiser step, on all processes alike."""
        self.task.control(state.global_step, state.max_steps)
        every = max(1, state.max_steps // _COMPARISONS)
        if self.task.controllers and state.global_step % every == 0:
            ratios = self.ratios()
            for name, controller in self.task.controllers.items():
                controller.compare(ratios[name.rpartition("/")[2]])
