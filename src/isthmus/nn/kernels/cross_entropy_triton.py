"""Cross-entropy and its gradients on a GPU, written in the place of the logits.

Triton kernels; nn/losses.py chooses, and has the same in plain torch. Measurements:
docs/decisions/cross-entropy-kernel.md.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from isthmus.nn.losses import IGNORED


class Sweep(NamedTuple):
    """What one program reads at a time, and with what."""

    columns: int
    warps: int


# Three programs a multiprocessor: the rows of 30,000 logits that an H200 then works on are 24 MB,
# and still in its cache when they are read again.
SWEEP = Sweep(columns=8192, warps=16)
_VECTOR = 8  # 16-bit numbers that a thread reads at once


def replace_by_gradients(
    logits: Tensor, targets: Tensor, write: bool = True, sweep: Sweep = SWEEP
) -> Tensor:
    """-log softmax(logits)[target] of each row in float32, 0 where the target is -100.

    Where it may write, softmax - 1 at the target stands in the place of the logits afterwards, in
    their type, and 0 in rows without a target. Rows are of a multiple of 8 logits. NaN in a row, or
    a target that is none of its columns, makes NaN of all of it.
    """
    rows, columns = logits.shape
    assert logits.is_contiguous(), logits.stride()
    assert columns % _VECTOR == 0, columns
    losses = torch.empty(rows, dtype=torch.float32, device=logits.device)
    if rows == 0:
        return losses
    with torch.cuda.device(logits.get_device()):
        _replace[rows,](
            logits,
            targets.contiguous(),
            losses,
            columns // _VECTOR,
            ignored=IGNORED,
            write=write,
            lanes=sweep.columns // _VECTOR,
            vector=_VECTOR,
            num_warps=sweep.warps,
        )
    return losses


def replace_by_bag_gradients(
    logits: Tensor, bags: Tensor, sizes: Tensor, write: bool = True, sweep: Sweep = SWEEP
) -> Tensor:
    """The mean of -log softmax(logits) in each row's bag in float32, 0 where the size is 0.

    Where it may write, softmax - 1 / size in the bag stands in the place of the logits afterwards,
    and 0 in rows of an empty bag. The bags may lack the last logits, which are in none of them.
    """
    rows, columns = logits.shape
    assert logits.is_contiguous(), logits.stride()
    assert columns % _VECTOR == 0, columns
    assert bags.dtype == torch.bool, bags.dtype
    assert len(bags) == len(sizes) == rows, (bags.shape, sizes.shape)
    assert bags.shape[1] <= columns, bags.shape
    losses = torch.empty(rows, dtype=torch.float32, device=logits.device)
    if rows == 0:
        return losses
    with torch.cuda.device(logits.get_device()):
        _replace_bags[rows,](
            logits,
            bags.contiguous().view(torch.uint8),
            sizes.contiguous(),
            losses,
            columns // _VECTOR,
            bags.shape[1],
            write=write,
            lanes=sweep.columns // _VECTOR,
            vector=_VECTOR,
            num_warps=sweep.warps,
        )
    return losses


@triton.jit  # type: ignore[untyped-decorator]
def _replace(
    logits: tl.tensor,
    targets: tl.tensor,
    losses: tl.tensor,
    vectors: tl.tensor,
    ignored: tl.constexpr,
    write: tl.constexpr,
    lanes: tl.constexpr,
    vector: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    target = tl.load(targets + row)
    # Written so, the compiler sees that vectors are aligned.
    own_row = logits + row * vectors * vector
    lane = tl.arange(0, lanes)
    within = tl.arange(0, vector)
    sweeps = tl.cdiv(vectors, lanes)
    if target == ignored:
        tl.store(losses + row, 0.0)
        if write:
            zeros = tl.zeros([lanes, vector], logits.dtype.element_ty)
            for sweep in range(sweeps):
                at = sweep * lanes + lane
                places = own_row + (at[:, None] * vector + within[None, :])
                tl.store(places, zeros, mask=(at < vectors)[:, None])
    else:
        known = (target >= 0) & (target < vectors * vector)
        own = tl.load(own_row + target, mask=known, other=float("nan")).to(tl.float32)
        chosen = target.to(tl.int32)
        # Each thread has a maximum of its own, so that none waits for another before the end. The
        # target is left out: the sum of the others is exact also where it is next to nothing.
        top = tl.full([lanes], float("-inf"), tl.float32)
        total = tl.zeros([lanes], tl.float32)
        for sweep in range(sweeps):
            at = sweep * lanes + lane
            column = at[:, None] * vector + within[None, :]
            found = tl.load(own_row + column, mask=(at < vectors)[:, None], other=float("-inf"))
            numbers = tl.where(column == chosen, float("-inf"), found.to(tl.float32))
            higher = tl.maximum(top, tl.max(numbers, 1))
            base = tl.where(higher == float("-inf"), 0.0, higher)
            total = total * tl.exp(top - base) + tl.sum(tl.exp(numbers - base[:, None]), 1)
            top = higher
        highest = tl.max(top, 0)
        base = tl.where(highest == float("-inf"), 0.0, highest)
        others = tl.sum(total * tl.exp(top - base), 0)
        peak = tl.maximum(highest, own)
        others *= tl.exp(highest - peak)
        whole = others + tl.exp(own - peak)
        tl.store(losses + row, tl.log(whole) + (peak - own))
        if write:
            share = 1.0 / whole
            for sweep in range(sweeps):
                # Backwards: of a row longer than the cache, its end is still there.
                at = (sweeps - 1 - sweep) * lanes + lane
                column = at[:, None] * vector + within[None, :]
                places, inside = own_row + column, (at < vectors)[:, None]
                numbers = tl.load(places, mask=inside, other=float("-inf")).to(tl.float32)
                gradients = tl.where(column == chosen, -others, tl.exp(numbers - peak)) * share
                tl.store(places, gradients.to(logits.dtype.element_ty), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _replace_bags(
    logits: tl.tensor,
    bags: tl.tensor,
    sizes: tl.tensor,
    losses: tl.tensor,
    vectors: tl.tensor,
    terms: tl.tensor,
    write: tl.constexpr,
    lanes: tl.constexpr,
    vector: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    size = tl.load(sizes + row)
    own_row = logits + row * vectors * vector
    own_bag = bags + row * terms
    lane = tl.arange(0, lanes)
    within = tl.arange(0, vector)
    sweeps = tl.cdiv(vectors, lanes)
    if size == 0:
        tl.store(losses + row, 0.0)
        if write:
            zeros = tl.zeros([lanes, vector], logits.dtype.element_ty)
            for sweep in range(sweeps):
                at = sweep * lanes + lane
                places = own_row + (at[:, None] * vector + within[None, :])
                tl.store(places, zeros, mask=(at < vectors)[:, None])
    else:
        part = 1.0 / size.to(tl.float32)
        # As above, but for the sum of the bag's own logits.
        top = tl.full([lanes], float("-inf"), tl.float32)
        total = tl.zeros([lanes], tl.float32)
        own = tl.zeros([lanes], tl.float32)
        for sweep in range(sweeps):
            at = sweep * lanes + lane
            column = at[:, None] * vector + within[None, :]
            found = tl.load(own_row + column, mask=(at < vectors)[:, None], other=float("-inf"))
            chosen = tl.load(own_bag + column, mask=column < terms, other=0) != 0
            numbers = found.to(tl.float32)
            own += tl.sum(tl.where(chosen, numbers, 0.0), 1)
            higher = tl.maximum(top, tl.max(numbers, 1))
            base = tl.where(higher == float("-inf"), 0.0, higher)
            total = total * tl.exp(top - base) + tl.sum(tl.exp(numbers - base[:, None]), 1)
            top = higher
        peak = tl.max(top, 0)
        peak = tl.where(peak == float("-inf"), 0.0, peak)
        whole = tl.sum(total * tl.exp(top - peak), 0)
        tl.store(losses + row, tl.log(whole) + (peak - tl.sum(own, 0) * part))
        if write:
            share = 1.0 / whole
            for sweep in range(sweeps):
                at = (sweeps - 1 - sweep) * lanes + lane
                column = at[:, None] * vector + within[None, :]
                places, inside = own_row + column, (at < vectors)[:, None]
                numbers = tl.load(places, mask=inside, other=float("-inf")).to(tl.float32)
                chosen = tl.load(own_bag + column, mask=column < terms, other=0) != 0
                gradients = tl.exp(numbers - peak) * share - tl.where(chosen, part, 0.0)
                tl.store(places, gradients.to(logits.dtype.element_ty), mask=inside)
