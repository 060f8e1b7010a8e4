"""Whether our Triton kernels run: every choice between them and plain torch is made here.

They need a GPU that computes 16-bit floats, Triton and a C compiler. `kernels_allowed(False)`
switches all of them off (`training.kernels=false`); plain torch computes the same. Those of layers
read the weights of modules that they do not call: they run while these are `Untouched`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from importlib.util import find_spec

import torch
from torch import Tensor, nn

from isthmus.nn.numerics import product_type
from isthmus.progress import notice

KERNELS = True  # the one switch
_DEVICES = ("cuda",)
_HALVES = (torch.bfloat16, torch.float16)
_WHOLE = (nn.Parameter, Tensor, type(None))  # types of weights; those of others are subclasses


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


class Untouched:
    """Modules as they are now; true as long as each computes what its class and weights say.

    Not with an adapter in the place of a module or with parametrised weights, nor with hooks, which
    nobody would call, nor with weights that are sharded or quantised.
    """

    def __init__(self, root: nn.Module) -> None:
        self._made = [
            (module, type(module), tuple(module._modules.values())) for module in root.modules()
        ]

    def __bool__(self) -> bool:
        # In few operations: hundreds of modules are asked in every step.
        for module, kind, children in self._made:
            weight = module._parameters.get("weight")
            if (
                type(module) is not kind
                or (children and tuple(module._modules.values()) != children)
                or module._forward_hooks
                or module._forward_pre_hooks
                or module._backward_hooks
                or module._backward_pre_hooks
                or type(weight) not in _WHOLE
                or (weight is not None and "forward" in module.__dict__)
            ):
                return False
        return True


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
        from isthmus.nn.kernels.norm_gelu_triton import added

        added(torch.zeros(1, 1, device=device))  # the smallest: where it runs, so do the others
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        notice(
            f"Triton compiles no kernels here ({reason[:200]}); plain torch computes the same, "
            "more slowly. It needs a C compiler and Python's headers, such as gcc and python3-dev."
        )
        return False
    return True
