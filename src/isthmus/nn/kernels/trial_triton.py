"""The smallest kernel: where it compiles and runs, so do the others."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


def run(device: torch.device) -> None:
    """Compiles and runs the kernel on a GPU; raises what Triton raises."""
    with torch.cuda.device(device):
        _fill[1,](torch.empty(1, device=device))


@triton.jit  # type: ignore[untyped-decorator]
def _fill(place: tl.tensor) -> None:
    tl.store(place, 1.0)
