"""Fast dropout on a CPU, where torch's takes a quarter of a training step.

torch draws one number after the other there, a whole one for every yes or no. Here a yes or no
takes 16 random bits, of numpy's fastest generator, seeded by torch's: whatever sets, saves or
replays torch's state does so for these draws too.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as functional
from torch import Tensor, nn

_STEPS = 1 << 16


def drop(states: Tensor, rate: float, training: bool = True) -> Tensor:
    """The states, each zero with the probability `rate` and scaled up otherwise.

    On a CPU the rate is rounded to 1/65536, and the scale is that of the rounded rate.
    """
    ours = states.device.type == "cpu" and 0 < rate < 1
    # torch.compile fuses torch's own dropout with its neighbours.
    if not training or not ours or torch.compiler.is_compiling():
        return functional.dropout(states, rate, training)
    dropped = min(round(rate * _STEPS), _STEPS - 1)
    size = states.numel()
    seed = int(torch.randint(2**63 - 1, ()))
    bits = np.random.SFC64(seed).random_raw(-(-size // 4)).view(np.uint16)[:size]
    kept = torch.from_numpy(bits >= dropped).view(states.shape)
    return torch.where(kept, states, 0) * (_STEPS / (_STEPS - dropped))


class Dropout(nn.Dropout):
    """nn.Dropout, by `drop`."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (nn.Dropout's name)
        """The states after dropout in training; otherwise, the states."""
        return drop(input, self.p, self.training)


def use_quick_dropout(model: nn.Module) -> None:
    """Replaces every nn.Dropout inside a model; attention has a rate of its own."""
    for module in list(model.modules()):
        for name, child in module.named_children():
            if type(child) is nn.Dropout:
                setattr(module, name, Dropout(child.p))
