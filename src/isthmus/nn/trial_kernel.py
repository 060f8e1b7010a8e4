"""The smallest kernel: where it can be compiled and run, so can the others."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


def run(device: int) -> None:
    """Compiles and runs it on the GPU of this number; raises what Triton raises."""
    with torch.cuda.device(device):
        _fill[1,](torch.empty(1, device=torch.device("cuda", device)))


@triton.jit  # type: ignore[untyped-decorator]
def _fill(place: tl.tensor) -> None:
    tl.store(place, 1.0)
