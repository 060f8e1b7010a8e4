"""Whether a GPU runs kernels written in Triton."""

from __future__ import annotations

from functools import lru_cache
from importlib.util import find_spec

import torch

# Whether a GPU that can takes kernels of our own; plain torch computes the same.
KERNELS = True


def has_triton(device: int) -> bool:
    """Whether our kernels run on the GPU of this number."""
    return KERNELS and _able(device)


@lru_cache
def _able(device: int) -> bool:
    if find_spec("triton") is None or torch.version.hip:
        return False
    # Three stages of two tiles, and some for the maxima: more than a chip for screens has.
    chip = torch.cuda.get_device_properties(device)
    return chip.major >= 8
