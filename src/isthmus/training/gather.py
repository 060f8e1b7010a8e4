"""Tensors of all processes as one, with gradients that find their way home."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, tensor: Tensor) -> Tensor:
        parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, tensor.contiguous())
        context.rows = tensor.shape[0]
        return torch.cat(parts)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Tensor:
        # Every process's loss depends on our rows: their gradients add up before we take our part.
        total = gradients[0].contiguous()
        dist.all_reduce(total)
        start = dist.get_rank() * context.rows
        return total[start : start + context.rows]


def gather(tensor: Tensor) -> Tensor:
    """The rows of all processes in rank order; the tensor itself when there is one process.

    All processes must hold the same number of rows.
    """
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return tensor
    result: Tensor = _Gather.apply(tensor)  # type: ignore[no-untyped-call]
    return result


def rank() -> int:
    """The place of this process among all; 0 when it is alone."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0
