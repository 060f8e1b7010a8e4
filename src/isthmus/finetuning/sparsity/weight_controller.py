"""A weight that finds itself: the one at which texts have as many terms as they should."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
import transformers
from torch import Tensor

# Both over a whole training: by how much, as a power of e, the weight grows when there are always
# twice as many terms as there should be, and how fast what should be comes down to the target.
_GAIN = 20.0
_GLIDE = 12.0
_FEWEST = 100  # steps over which they are spread: a trial of ten must not leap
_FARTHEST = 10.0  # that they are believed to lie apart: a text may have lost all its terms
_LOOKS = 20  # times in a training that texts of the index are looked at


class Steering:
    """Proportional-integral control of a regularizer's weight, in log space, by active terms.

    After every optimiser step, with the active terms of an average text of all its passes and
    processes, and beginning with as many as there are:

        wanted = max(target, wanted · exp(-glide / steps))
        error = clip(ratio · active / wanted - 1, -1, 1)
        integral += gain / steps · error
        weight = exp(integral + error)

    The integral comes to rest where active terms are right, whatever weight that takes. Terms that
    are lost come back slowly: so the way to the target is a glide and not a jump, and the error is
    added to its integral, which damps the swing. Both rates are per training, so that a long one
    swings no more often than a short one.

    The target is meant for an index, and texts that are trained on have other numbers of terms than
    those: the ratio of the two is measured now and then, and half of a change in it is believed.
    """

    def __init__(self, target: float, weight: float) -> None:
        self.target = target
        self.wanted: Tensor | None = None
        self.integral = torch.tensor(math.log(weight), dtype=torch.float64)
        self.error = torch.zeros_like(self.integral)
        self.ratio = torch.ones_like(self.integral)

    def to(self, device: torch.device) -> None:
        """Goes on there. What the weight is computed from is changed in place ever after."""
        self.integral, self.error = self.integral.to(device), self.error.to(device)
        self.ratio = self.ratio.to(device)
        self.wanted = None if self.wanted is None else self.wanted.to(device)

    @property
    def weight(self) -> Tensor:
        """The weight as it is now."""
        return (self.integral + self.error).exp()

    def step(self, active: Tensor, steps: int) -> None:
        """Moves the weight by what one of so many optimiser steps saw.

        On the device of what it saw: a GPU that were asked how many terms would be waited for.
        """
        active = active.double() * self.ratio
        steps = max(steps, _FEWEST)
        before = active if self.wanted is None else self.wanted
        self.wanted = (before * math.exp(-_GLIDE / steps)).clamp(min=self.target)
        self.error.copy_((active / self.wanted - 1).clamp(-1, 1))
        self.integral += _GAIN / steps * self.error

    def compare(self, ratio: Tensor) -> None:
        """Learns how many terms a text of the index has for each that one of the training has."""
        ratio = ratio.double().clamp(1 / _FARTHEST, _FARTHEST)
        self.ratio = (self.ratio * ratio).sqrt()

    def state(self) -> dict[str, float | None]:
        """All that changes while steering."""
        return {
            "wanted": None if self.wanted is None else float(self.wanted),
            "integral": float(self.integral),
            "error": float(self.error),
            "ratio": float(self.ratio),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Goes on from an earlier state."""
        wanted = state["wanted"]
        self.wanted = None if wanted is None else torch.full_like(self.integral, wanted)
        self.integral.fill_(state["integral"])
        self.error.fill_(state["error"])
        self.ratio = torch.full_like(self.integral, state["ratio"])


class Steer(transformers.TrainerCallback):  # type: ignore[misc]
    """Lets a task steer after every optimiser step, before a checkpoint of it is written.

    Now and then it is told what texts of the index have, each process by itself, all the same.
    """

    def __init__(self, task: Any, ratios: Callable[[], Mapping[str, Tensor]]) -> None:
        self.task = task
        self.ratios = ratios

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """After every optimiser step, on all processes alike."""
        self.task.steer(state.global_step, state.max_steps)
        if self.task.steering and state.global_step % max(1, state.max_steps // _LOOKS) == 0:
            ratios = self.ratios()
            for name, steering in self.task.steering.items():
                steering.compare(ratios[name.rpartition("/")[2]])
