"""Whether a GPU runs kernels written in Triton."""

from __future__ import annotations

from functools import lru_cache
from importlib.util import find_spec

import torch

from isthmus.progress import notice

# Whether a GPU that can takes kernels of our own; plain torch computes the same.
KERNELS = True


def has_triton(device: int, shared: int = 0) -> bool:
    """Whether our kernels run on the GPU of this number, in so many bytes of shared memory."""
    return KERNELS and _able(device, shared)


@lru_cache
def _able(device: int, shared: int) -> bool:
    if find_spec("triton") is None or torch.version.hip:
        return False
    chip = torch.cuda.get_device_properties(device)
    room = int(getattr(chip, "shared_memory_per_block_optin", 0))
    return chip.major >= 8 and room >= shared and _compiles(device)


@lru_cache
def _compiles(device: int) -> bool:
    """Whether Triton makes kernels here; it calls a C compiler, which some machines lack."""
    try:
        from isthmus.nn.trial_kernel import run

        run(device)
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        notice(
            f"Triton compiles no kernels here ({reason[:200]}); plain torch computes the same, "
            "more slowly. It needs a C compiler and Python's headers, such as gcc and python3-dev."
        )
        return False
    return True
