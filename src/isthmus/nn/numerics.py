"""How numbers are computed: in which type, quick dropout on a CPU, positions and token types."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from isthmus.errors import SettingsError


def native_bf16() -> bool:
    """Whether bf16 products are faster than float32 ones here; emulated, they are slower."""
    if torch.cuda.is_available():
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    capabilities = torch.cpu.get_capabilities()
    return bool(capabilities.get("amx_bf16") or capabilities.get("avx512_bf16"))


def check_as_stored(name: str, rounded: bool) -> None:
    """Refuses to save a model whose weights were rounded when it was loaded."""
    if rounded:
        raise SettingsError(
            f"the weights of {name} were rounded to bf16, in which this chip is fastest: saved, "
            "they would be another model",
            "load it with exact=True, and save that",
        )


def product_type(states: Tensor) -> torch.dtype:
    """The type of a matrix product with these states: theirs, or that of autocast."""
    device = states.device.type
    autocast = torch.is_autocast_enabled(device)
    return torch.get_autocast_dtype(device) if autocast else states.dtype


def rounded(states: Tensor) -> Tensor:
    """The states, cast to the autocast type if autocast is on."""
    return states.to(product_type(states))


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


def position_numbers(input_ids: Tensor, padding_id: int | None) -> Tensor:
    """The number of every position, [length] or [batch, length].

    RoBERTa and its kin, which have a `padding_id`, count from the number after it and skip padding.
    """
    if padding_id is None:
        return torch.arange(input_ids.shape[1], device=input_ids.device)
    present = (input_ids != padding_id).long()
    return present.cumsum(1) * present + padding_id


def use_first_type(model: Any) -> None:
    """Lets a model, if it has token types, take the first one for every token."""
    embeddings = getattr(model.base_model, "embeddings", None)
    types = getattr(embeddings, "token_type_embeddings", None)
    if types is not None:
        types.__class__ = _FirstType


class _FirstType(nn.Embedding):
    """The embedding of the first type for every token: one row, whose gradient is a sum.

    A lookup would add the gradients of all tokens to that row one after the other.
    """

    def forward(self, types: Tensor) -> Tensor:
        return self.weight[0].expand(*types.shape, -1)
