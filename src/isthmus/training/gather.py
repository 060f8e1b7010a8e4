"""Tensors of all processes as one, with gradients that find their way home."""

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
            # gloo carries parts of one size only.
            sent = torch.cat([tensor, tensor.new_zeros(missing, *tensor.shape[1:])])
        parts = [torch.empty_like(sent) for _ in rows]
        dist.all_gather(parts, sent)
        context.rows = rows
        return torch.cat([part[:size] for part, size in zip(parts, rows, strict=True)])

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        # Every process's loss depends on our rows: their gradients add up before we take our part.
        total = gradients[0].contiguous()
        dist.all_reduce(total)
        return torch.split(total, context.rows)[dist.get_rank()], None


def gather(tensor: Tensor, rows: Sequence[int] | None = None) -> Tensor:
    """The rows of all processes in rank order; the tensor itself when there is one process.

    `rows`: how many each process holds, from `row_counts`; by default, all hold as many.
    """
    if _alone():
        return tensor
    held = [len(tensor)] * dist.get_world_size() if rows is None else list(rows)
    result: Tensor = _Gather.apply(tensor, held)  # type: ignore[no-untyped-call]
    return result


def row_counts(tensor: Tensor) -> list[int]:
    """How many rows each process holds, in rank order; the host waits for the answer."""
    if _alone():
        return [len(tensor)]
    counts = torch.zeros(dist.get_world_size(), dtype=torch.int64, device=tensor.device)
    counts[dist.get_rank()] = len(tensor)
    dist.all_reduce(counts)
    told: list[int] = counts.tolist()
    return told


def rank() -> int:
    """The place of this process among all; 0 when it is alone."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def _alone() -> bool:
    return not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1
