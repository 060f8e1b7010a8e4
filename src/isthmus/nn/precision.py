"""The types that numbers are computed in."""

from __future__ import annotations

import torch
from torch import Tensor

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
