"""Work of several processes, and of batches in chunks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.checkpoint import checkpoint

# Tokenising, mining or a teacher may take hours, while the other processes wait.
_PATIENCE = timedelta(days=7)


def wait_for_everyone() -> None:
    """Waits until every process has called this."""
    from accelerate import PartialState

    PartialState().wait_for_everyone()


@contextmanager
def main_process_first() -> Iterator[None]:
    """The first process runs the block alone; the others follow and find its files ready."""
    from accelerate import PartialState

    # Without cpu=True, accelerate takes several processes without a GPU for single ones.
    state = PartialState(cpu=not torch.cuda.is_available(), timeout=_PATIENCE)
    with state.main_process_first():
        yield


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, tensor: Tensor) -> Tensor:
        sent = tensor.contiguous()
        parts = [torch.empty_like(sent) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, sent)
        return torch.cat(parts)

    @staticmethod
    def backward(_: Any, *gradients: Tensor) -> Tensor:
        # The losses of all processes depend on these rows: their gradients are summed.
        total = gradients[0].contiguous()
        dist.all_reduce(total)
        return total.chunk(dist.get_world_size())[dist.get_rank()]


def gather(tensor: Tensor) -> Tensor:
    """The rows of all processes in rank order, equally many of each; the tensor itself of one."""
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return tensor
    result: Tensor = _Gather.apply(tensor)  # type: ignore[no-untyped-call]
    return result


def rank() -> int:
    """The rank of this process; 0 when there is one process."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


# Tokens that keep the device busy: with fewer, kernel launches cost more than padding.
TOKENS = {"cpu": 1 << 12, "cuda": 1 << 14}
# Devices on which padding is left out (nn/packing.py), so that chunks only cost launches.
WHOLE = ("cuda",)


def in_chunks(
    represent: Callable[..., Tensor],
    ids: Tensor,
    mask: Tensor,
    size: int | None = None,
    tokens: Tensor | None = None,
) -> Tensor:
    """What `represent` gives for right-padded ids and their mask, rows in the order given.

    `tokens` are the places of tokens in the flattened batch, for a `represent` that leaves padding
    out: on a GPU it gets all rows at once, and these places, which need no synchronisation.

    With a `size`, at most so many texts are encoded at once and their activations are dropped:
    the backward pass encodes each chunk once more, with the same dropout, when its gradient is
    known (gradient caching, Gao et al. 2021). Memory then holds one chunk and all vectors, and the
    gradient is still that of a loss over the whole batch.
    """
    if size is None and tokens is not None and ids.device.type in WHOLE:
        return represent(ids, mask, tokens)
    lengths = mask.sum(1).cpu()
    order = torch.argsort(lengths, descending=True, stable=True)
    widths = lengths[order].tolist()
    places = order.to(ids.device)
    parts = []
    for start, stop in _cuts(widths, TOKENS[ids.device.type], size or len(ids)):
        rows, width = places[start:stop], widths[start]
        chunk = ids[rows, :width], mask[rows, :width]
        if size is not None:
            parts.append(checkpoint(represent, *chunk, use_reentrant=False))
        else:
            parts.append(represent(*chunk))
    return torch.cat(parts)[torch.argsort(places)]


def _cuts(widths: Sequence[int], tokens: int, rows: int) -> Iterator[tuple[int, int]]:
    """Yields the bounds of chunks of at most so many tokens and rows, but at least one row."""
    start = 0
    while start < len(widths):
        stop = min(start + max(1, min(tokens // widths[start], rows)), len(widths))
        yield start, stop
        start = stop
