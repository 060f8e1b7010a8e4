"""Gathers tensors of all processes, with gradients that flow back to each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, tensor: Tensor, rows: Sequence[int]) -> Tensor:
        sent = tensor.contiguous()
        if missing := max(rows) - len(tensor):
            # gloo gathers tensors of one size only.
            sent = torch.cat([tensor, tensor.new_zeros(missing, *tensor.shape[1:])])
        parts = [torch.empty_like(sent) for _ in rows]
        dist.all_gather(parts, sent)
        context.rows = rows
        return torch.cat([part[:size] for part, size in zip(parts, rows, strict=True)])

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        # The losses of all processes depend on these rows: their gradients are summed.
        total = gradients[0].contiguous()
        dist.all_reduce(total)
        return torch.split(total, context.rows)[dist.get_rank()], None


def gather(tensor: Tensor, rows: Sequence[int] | None = None) -> Tensor:
    """The rows of all processes in rank order; the tensor itself when there is one process.

    `rows` are those of each process, from `row_counts`; by default, all have the same number.
    """
    if _alone():
        return tensor
    held = [len(tensor)] * dist.get_world_size() if rows is None else list(rows)
    result: Tensor = _Gather.apply(tensor, held)  # type: ignore[no-untyped-call]
    return result


def row_counts(tensor: Tensor) -> list[int]:
    """The number of rows of each process, in rank order; synchronises the device."""
    if _alone():
        return [len(tensor)]
    counts = torch.zeros(dist.get_world_size(), dtype=torch.int64, device=tensor.device)
    counts[dist.get_rank()] = len(tensor)
    dist.all_reduce(counts)
    found: list[int] = counts.tolist()
    return found


def rank() -> int:
    """The rank of this process; 0 when there is one process."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def _alone() -> bool:
    return not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1
