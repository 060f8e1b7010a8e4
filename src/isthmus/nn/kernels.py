"""Whether a GPU runs kernels written in Triton."""

from __future__ import annotations

from functools import lru_cache
from importlib.util import find_spec

import torch

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
    return chip.major >= 8 and int(getattr(chip, "shared_memory_per_block_optin", 0)) >= shared
