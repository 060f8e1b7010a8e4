"""Whether our Triton kernels run: every choice between them and plain torch is made here.

They need a GPU that computes 16-bit floats, Triton and a C compiler. `kernels_allowed(False)`
switches all of them off (`training.kernels=false`); plain torch computes the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from importlib.util import find_spec

import torch
from torch import Tensor

from isthmus.nn.numerics import product_type
from isthmus.progress import notice

KERNELS = True  # the one switch
_DEVICES = ("cuda",)
_HALVES = (torch.bfloat16, torch.float16)


@contextmanager
def kernels_allowed(allowed: bool) -> Iterator[None]:
    """No kernel runs inside unless `allowed`; the switch is as before afterwards."""
    global KERNELS
    before = KERNELS
    KERNELS = before and allowed
    try:
        yield
    finally:
        KERNELS = before


def has_triton(device: torch.device, shared: int = 0) -> bool:
    """Whether kernels run on a device, in so many bytes of shared memory."""
    return KERNELS and device.type in _DEVICES and _able(device, shared)


def has_half_kernels(numbers: Tensor, shared: int = 0) -> bool:
    """Whether kernels of 16-bit floats run on these numbers, as they are."""
    return numbers.dtype in _HALVES and has_triton(numbers.device, shared)


def has_kernels(states: Tensor) -> bool:
    """Whether the kernels of layers run on these states, cast by autocast if that is on."""
    return has_triton(states.device) and product_type(states) in _HALVES


@lru_cache
def _able(device: torch.device, shared: int) -> bool:
    if find_spec("triton") is None or torch.version.hip:
        return False
    chip = torch.cuda.get_device_properties(device)
    room = int(getattr(chip, "shared_memory_per_block_optin", 0))
    return chip.major >= 8 and room >= shared and _compiles(device)


@lru_cache
def _compiles(device: torch.device) -> bool:
    """Whether Triton compiles kernels here; it calls a C compiler, which some machines lack."""
    try:
        from isthmus.nn.kernels.trial_triton import run

        run(device)
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        notice(
            f"Triton compiles no kernels here ({reason[:200]}); plain torch computes the same, "
            "more slowly. It needs a C compiler and Python's headers, such as gcc and python3-dev."
        )
        return False
    return True
