"""Encodes a batch in chunks of similar length: less padding and, optionally, less memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

# Tokens that keep the device busy: with fewer, kernel launches cost more than padding.
_TOKENS = {"cpu": 1 << 12, "cuda": 1 << 14}
# Devices on which padding is left out (nn/packing.py), so that chunks only cost launches.
_WHOLE = ("cuda",)


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
    if size is None and tokens is not None and ids.device.type in _WHOLE:
        return represent(ids, mask, tokens)
    lengths = mask.sum(1).cpu()
    order = torch.argsort(lengths, descending=True, stable=True)
    widths = lengths[order].tolist()
    places = order.to(ids.device)
    parts = []
    for start, stop in _cuts(widths, _TOKENS[ids.device.type], size or len(ids)):
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
