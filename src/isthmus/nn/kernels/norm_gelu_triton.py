"""What lies between a layer's matrix products, on a GPU: each in one kernel forward and one back.

Triton kernels; norm_gelu.py chooses, and has the same in plain torch. All of them are limited by
the bytes they move, so nothing is written that can be had again: which numbers were dropped is
drawn a second time on the way back, four decisions from one draw. docs/decisions/own-layers.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

_ROWS = tl.constexpr(4)  # that share a draw, a word each, and are worked on at a time
_TAG = tl.constexpr(0x69737468)  # keeps these draws apart from torch's own
_ROUNDS = tl.constexpr(7)  # of Philox; fewer fail tests of randomness (Salmon et al., SC 2011)
_STEPS = 1 << 31
_SEEDS = (1 << 63) - 1


class Tuning(NamedTuple):
    """How the kernels share the work."""

    # Of a multiprocessor, in the backward kernels: what its registers hold (251 and 72 a thread).
    # Programs beyond would begin when the first ones are through, with as long a way to go.
    norm_warps: int = 8
    gelu_programs: int = 7
    join_programs: int = 5
    stages: int = 2  # groups of rows that GELU's has on their way, its own included
    norm_stages: int = 3  # likewise
    join_stages: int = 2  # likewise
    columns: int = 256  # of GELU's tiles
    rows: int = 8  # likewise
    join_columns: int = 1024
    join_rows: int = 2
    sum_columns: int = 16  # of partial sums that a program adds up


TUNING = Tuning()


class Draw(NamedTuple):
    """Which numbers are dropped: a seed, and how many of 2³¹.

    The seed stays on its device: the host need not wait for it, and a captured step that is
    replayed draws another one.
    """

    seed: Tensor | None  # int64 [1]
    dropped: int

    @classmethod
    def next(cls, rate: float, device: torch.device) -> Draw:
        """A draw whose seed comes from torch's generator."""
        dropped = min(round(rate * _STEPS), _STEPS - 1)
        return cls(torch.randint(_SEEDS, (1,), device=device) if dropped else None, dropped)


def norm_forward(
    states: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    weight: Tensor,
    offset: Tensor,
    epsilon: float,
    draw: Draw,
    dtype: torch.dtype,
    back: bool = True,
    after: bool = False,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """norm(residual + dropout(states + bias)) of rows [rows, width], in `dtype`.

    Or dropout(norm(residual + states + bias)), where dropout comes `after` the norm. With `back`,
    also what the backward pass needs: the input of the norm in the type of the states (the states
    themselves where nothing is added), and the mean and 1 / deviation of every row.
    """
    rows, width = states.shape
    normed = torch.empty_like(states, dtype=dtype)
    changed = bias is not None or residual is not None or (draw.dropped > 0 and not after)
    summed = torch.empty_like(states) if back and changed else None
    moments = torch.empty(rows, 2, dtype=torch.float32, device=states.device) if back else None
    tile = triton.next_power_of_2(width)
    with _on(states):
        _norm_forward[(triton.cdiv(rows, _ROWS.value),)](
            states, bias, residual, weight, offset, summed, normed, moments,
            rows, width, epsilon, draw.seed, draw.dropped,
            drops=draw.dropped > 0,
            after=after,
            tile=tile,
            num_warps=_warps(tile),
        )  # fmt: skip
    return normed, summed if changed or not back else states, moments


def norm_backward(
    above: Tensor,
    beside: Tensor | None,
    summed: Tensor,
    moments: Tensor,
    weight: Tensor,
    draw: Draw,
    dtype: torch.dtype,
    after: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of the states, of the residual in `dtype`, and of weight, offset and bias.

    `above` and `beside`: the gradients of the two results. `after`: dropout came after the norm.
    """
    rows, width = summed.shape
    for_residual = torch.empty_like(summed, dtype=dtype)
    # Without dropout before the norm, both gradients are equal.
    same = (after or not draw.dropped) and dtype == summed.dtype
    for_states = for_residual if same else torch.empty_like(summed)
    tile = triton.next_power_of_2(width)
    warps = _warps(tile)
    programs = max(TUNING.norm_warps // warps, 1) * _multiprocessors(summed.device)
    programs = max(min(triton.cdiv(rows, _ROWS.value), programs), 1)
    sums = torch.empty(programs, 3, width, dtype=torch.float32, device=summed.device)
    with _on(summed):
        _norm_backward[(programs,)](
            above, beside, summed, moments, weight, for_states, for_residual, sums,
            rows, width, draw.seed, draw.dropped,
            drops=draw.dropped > 0,
            after=after,
            same=same,
            tile=tile,
            # Wide rows leave no room for as many on smaller chips.
            stages=TUNING.norm_stages - (tile > 1024),
            num_warps=warps,
        )  # fmt: skip
    return for_states, for_residual, added(sums)


def gelu_forward(states: Tensor, bias: Tensor) -> Tensor:
    """GELU(states + bias), of rows [rows, width]."""
    rows, width = states.shape
    active = torch.empty_like(states)
    grid = triton.cdiv(rows, TUNING.rows), triton.cdiv(width, TUNING.columns)
    with _on(states):
        _gelu_forward[grid](
            states, bias, active, rows, width,
            row_tile=TUNING.rows, column_tile=TUNING.columns, num_warps=4,
        )  # fmt: skip
    return active


def gelu_backward(above: Tensor, states: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of the states and of the bias."""
    rows, width = states.shape
    gradient = torch.empty_like(states)
    parts = triton.cdiv(width, TUNING.columns)
    programs = max(TUNING.gelu_programs * _multiprocessors(states.device) // parts, 1)
    programs = max(min(triton.cdiv(rows, TUNING.rows), programs), 1)
    sums = torch.empty(programs, width, dtype=torch.float32, device=states.device)
    with _on(states):
        _gelu_backward[programs, parts](
            above, states, bias, gradient, sums, rows, width,
            row_tile=TUNING.rows, column_tile=TUNING.columns, stages=TUNING.stages, num_warps=4,
        )  # fmt: skip
    return gradient, added(sums)


def join(parts: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Two or three of [batch, heads, rows, width] side by side, and the sums of their columns.

    [batch * rows, parts * heads * width], and in float32 [parts * heads * width].
    """
    if any(part.stride() != parts[0].stride() or part.stride(3) != 1 for part in parts):
        parts = [part.contiguous() for part in parts]
    first, second = parts[:2]
    third = parts[2] if len(parts) == 3 else None
    batch, heads, length, size = first.shape
    rows, width, count = batch * length, heads * size, len(parts)
    joined = first.new_empty(rows, count * width)
    # Of narrow ones, more rows.
    column_tile = min(triton.next_power_of_2(width), TUNING.join_columns)
    row_tile = TUNING.join_rows * TUNING.join_columns // column_tile
    tiles = triton.cdiv(width, column_tile)
    programs = max(TUNING.join_programs * _multiprocessors(first.device) // tiles, 1)
    programs = max(min(triton.cdiv(rows, row_tile), programs), 1)
    sums = torch.empty(programs, count * width, dtype=torch.float32, device=first.device)
    with _on(first):
        _join[programs, tiles](
            first, second, third, joined, sums, rows, length, width, *first.stride()[:3],
            size=size,
            count=count,
            row_tile=row_tile,
            column_tile=column_tile,
            stages=TUNING.join_stages,
            num_warps=4,
        )  # fmt: skip
    return joined, added(sums)


def added(sums: Tensor) -> Tensor:
    """The sum over the first dimension, in float32, by one short kernel."""
    tile = TUNING.sum_columns
    total = torch.empty(sums.shape[1:], dtype=sums.dtype, device=sums.device)
    width, rows = total.numel(), min(triton.next_power_of_2(len(sums)), 512)
    with _on(sums):
        _add[(triton.cdiv(width, tile),)](
            sums, total, len(sums), width, row_tile=rows, column_tile=tile, num_warps=8
        )
    return total


def _on(states: Tensor) -> torch.cuda.device:
    return torch.cuda.device(states.get_device())


def _warps(tile: int) -> int:
    """So that a thread holds eight numbers of a row, which it loads at once."""
    return min(max(tile // 256, 1), 16)


@lru_cache
def _multiprocessors(device: torch.device) -> int:
    if device.type != "cuda":
        return 1
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


@triton.jit  # type: ignore[untyped-decorator]
def _kept(
    number: tl.tensor,
    group: tl.tensor,
    column: tl.tensor,
    loaded: tl.tensor,
    dropped: tl.tensor,
) -> tl.tensor:
    """Whether each number of four rows is kept, [rows, columns], by one draw for every column.

    Held by the threads that hold what was `loaded` of every column: Triton would spread what is
    computed from their numbers over threads in another way, and pass it on through shared memory.
    """
    lane = tl.where(loaded == float("inf"), column + 1, column)
    nothing = lane * 0
    one, two, three, four = tl.philox(
        number, lane, nothing + group, nothing, nothing + _TAG, _ROUNDS
    )
    # A thread has all rows of a column, so that this is chosen when the kernel is compiled.
    row = tl.arange(0, _ROWS)[:, None]
    first = tl.where(row == 0, one[None, :], two[None, :])
    last = tl.where(row == 2, three[None, :], four[None, :])
    return (tl.where(row < 2, first, last) >> 1).to(tl.int32) >= dropped


@triton.jit(do_not_specialize=["rows", "dropped"])  # type: ignore[untyped-decorator]
def _norm_forward(
    states: tl.tensor,
    bias: tl.tensor,
    residual: tl.tensor,
    weight: tl.tensor,
    offset: tl.tensor,
    summed: tl.tensor,
    normed: tl.tensor,
    moments: tl.tensor,
    rows: tl.tensor,
    width: tl.tensor,
    epsilon: tl.tensor,
    seed: tl.tensor,
    dropped: tl.tensor,
    drops: tl.constexpr,
    after: tl.constexpr,
    tile: tl.constexpr,
) -> None:
    if drops:
        number = tl.load(seed)  # first: it takes as long to come as all else
    column = tl.arange(0, tile)
    within = column < width
    scale = tl.load(weight + column, mask=within, other=0.0).to(tl.float32)
    shift = tl.load(offset + column, mask=within, other=0.0).to(tl.float32)
    group = tl.program_id(0)
    row = group * _ROWS + tl.arange(0, _ROWS)
    known = (row < rows)[:, None] & within[None, :]
    at = row.to(tl.int64)[:, None] * width + column[None, :]
    value = tl.load(states + at, mask=known, other=0.0).to(tl.float32)
    if residual is not None:
        beside = tl.load(residual + at, mask=known, other=0.0).to(tl.float32)
    if bias is not None:
        value += tl.load(bias + column, mask=within, other=0.0).to(tl.float32)[None, :]
    if drops:
        kept = _kept(number, group, column, scale, dropped)
        rise = 2147483648.0 / (2147483648.0 - dropped)
        if not after:
            value = tl.where(kept, value * rise, 0.0)
    if residual is not None:
        value += beside
    # What the backward pass reads is exactly what is normed.
    rounded = value.to(states.dtype.element_ty)
    if summed is not None:
        tl.store(summed + at, rounded, mask=known)
    value = rounded.to(tl.float32)
    mean = tl.sum(value, 1) / width
    centred = tl.where(within[None, :], value - mean[:, None], 0.0)
    inverse = tl.rsqrt(tl.sum(centred * centred, 1) / width + epsilon)
    result = centred * inverse[:, None] * scale[None, :] + shift[None, :]
    if drops and after:
        result = tl.where(kept, result * rise, 0.0)
    tl.store(normed + at, result.to(normed.dtype.element_ty), mask=known)
    if moments is not None:
        tl.store(moments + row * 2, mean, mask=row < rows)
        tl.store(moments + row * 2 + 1, inverse, mask=row < rows)


@triton.jit(do_not_specialize=["rows", "dropped"])  # type: ignore[untyped-decorator]
def _norm_backward(
    above: tl.tensor,
    beside: tl.tensor,
    summed: tl.tensor,
    moments: tl.tensor,
    weight: tl.tensor,
    for_states: tl.tensor,
    for_residual: tl.tensor,
    sums: tl.tensor,
    rows: tl.tensor,
    width: tl.tensor,
    seed: tl.tensor,
    dropped: tl.tensor,
    drops: tl.constexpr,
    after: tl.constexpr,
    same: tl.constexpr,
    tile: tl.constexpr,
    stages: tl.constexpr,
) -> None:
    if drops:
        number = tl.load(seed)
    column = tl.arange(0, tile)
    within = column < width
    scale = tl.load(weight + column, mask=within, other=0.0).to(tl.float32)
    for_weight = tl.zeros([tile], tl.float32)
    for_offset = tl.zeros([tile], tl.float32)
    for_bias = tl.zeros([tile], tl.float32)
    groups = tl.cdiv(rows, _ROWS)
    for group in tl.range(tl.program_id(0), groups, tl.num_programs(0), num_stages=stages):
        row = group * _ROWS + tl.arange(0, _ROWS)
        known = (row < rows)[:, None] & within[None, :]
        at = row.to(tl.int64)[:, None] * width + column[None, :]
        value = tl.load(summed + at, mask=known, other=0.0).to(tl.float32)
        upstream = tl.load(above + at, mask=known, other=0.0).to(tl.float32)
        if beside is not None:
            upstream += tl.load(beside + at, mask=known, other=0.0).to(tl.float32)
        if drops and after:
            kept = _kept(number, group, column, scale, dropped)
            upstream = tl.where(kept, upstream * (2147483648.0 / (2147483648.0 - dropped)), 0.0)
        mean = tl.load(moments + row * 2, mask=row < rows, other=0.0)
        inverse = tl.load(moments + row * 2 + 1, mask=row < rows, other=0.0)
        unit = (value - mean[:, None]) * inverse[:, None]
        for_weight += tl.sum(upstream * unit, 0)
        for_offset += tl.sum(upstream, 0)
        upstream *= scale[None, :]
        # Past the width upstream is 0, so that the unit there does not count.
        along = tl.sum(upstream * unit, 1) / width
        level = tl.sum(upstream, 1) / width
        gradient = (upstream - unit * along[:, None] - level[:, None]) * inverse[:, None]
        tl.store(for_residual + at, gradient.to(for_residual.dtype.element_ty), mask=known)
        if drops and not after:
            kept = _kept(number, group, column, scale, dropped)
            scaled = gradient * (2147483648.0 / (2147483648.0 - dropped))
            gradient = tl.where(kept, scaled, 0.0)
        for_bias += tl.sum(gradient, 0)
        if not same:
            tl.store(for_states + at, gradient.to(for_states.dtype.element_ty), mask=known)
    target = sums + tl.program_id(0) * 3 * width + column
    tl.store(target, for_weight, mask=within)
    tl.store(target + width, for_offset, mask=within)
    tl.store(target + 2 * width, for_bias, mask=within)


@triton.jit(do_not_specialize=["rows"])  # type: ignore[untyped-decorator]
def _add(
    sums: tl.tensor,
    added: tl.tensor,
    rows: tl.tensor,
    width: tl.tensor,
    row_tile: tl.constexpr,
    column_tile: tl.constexpr,
) -> None:
    column = tl.program_id(0) * column_tile + tl.arange(0, column_tile)
    total = tl.zeros([row_tile, column_tile], tl.float32)
    for start in range(0, rows, row_tile):
        row = start + tl.arange(0, row_tile)
        known = (row < rows)[:, None] & (column < width)[None, :]
        total += tl.load(sums + row[:, None] * width + column[None, :], mask=known, other=0.0)
    tl.store(added + column, tl.sum(total, 0), mask=column < width)


@triton.jit  # type: ignore[untyped-decorator]
def _below(value: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
    """The normal distribution below a value, and exp(-value² / 2).

    Abramowitz and Stegun, 26.2.17, wrong by 1e-7 at most: an error function takes more instructions
    than the memory gives time for, and the exponential is wanted anyway. So does a division: of
    what is never below 1, the square of 1 / √ is as good.
    """
    bell = tl.exp2(value * value * -0.7213475204444817)
    root = tl.rsqrt(1.0 + 0.2316419 * tl.abs(value))
    part = root * root
    tail = 0.5307027145 * part - 0.7265760135
    tail = tail * part + 0.7107068705
    tail = tail * part - 0.142248368
    tail = tail * part + 0.127414796
    tail = tail * part * bell
    return tl.where(value < 0, tail, 1.0 - tail), bell


@triton.jit(do_not_specialize=["rows"])  # type: ignore[untyped-decorator]
def _gelu_forward(
    states: tl.tensor,
    bias: tl.tensor,
    active: tl.tensor,
    rows: tl.tensor,
    width: tl.tensor,
    row_tile: tl.constexpr,
    column_tile: tl.constexpr,
) -> None:
    row = tl.program_id(0) * row_tile + tl.arange(0, row_tile)
    column = tl.program_id(1) * column_tile + tl.arange(0, column_tile)
    known = (row < rows)[:, None] & (column < width)[None, :]
    at = row.to(tl.int64)[:, None] * width + column[None, :]
    added = tl.load(bias + column, mask=column < width, other=0.0).to(tl.float32)
    value = tl.load(states + at, mask=known, other=0.0).to(tl.float32) + added[None, :]
    below, _ = _below(value)
    tl.store(active + at, (value * below).to(active.dtype.element_ty), mask=known)


@triton.jit(do_not_specialize=["rows"])  # type: ignore[untyped-decorator]
def _gelu_backward(
    above: tl.tensor,
    states: tl.tensor,
    bias: tl.tensor,
    gradient: tl.tensor,
    sums: tl.tensor,
    rows: tl.tensor,
    width: tl.tensor,
    row_tile: tl.constexpr,
    column_tile: tl.constexpr,
    stages: tl.constexpr,
) -> None:
    column = tl.program_id(1) * column_tile + tl.arange(0, column_tile)
    added = tl.load(bias + column, mask=column < width, other=0.0).to(tl.float32)
    total = tl.zeros([row_tile, column_tile], tl.float32)
    first, step = tl.program_id(0) * row_tile, tl.num_programs(0) * row_tile
    for start in tl.range(first, rows, step, num_stages=stages):
        row = start + tl.arange(0, row_tile)
        known = (row < rows)[:, None] & (column < width)[None, :]
        at = row.to(tl.int64)[:, None] * width + column[None, :]
        value = tl.load(states + at, mask=known, other=0.0).to(tl.float32) + added[None, :]
        upstream = tl.load(above + at, mask=known, other=0.0).to(tl.float32)
        below, bell = _below(value)
        upstream *= below + value * bell * 0.3989422804014327
        tl.store(gradient + at, upstream.to(gradient.dtype.element_ty), mask=known)
        total += upstream
    target = sums + tl.program_id(0) * width + column
    tl.store(target, tl.sum(total, 0), mask=column < width)


@triton.jit(do_not_specialize=["rows", "length"])  # type: ignore[untyped-decorator]
def _join(
    first: tl.tensor,
    second: tl.tensor,
    third: tl.tensor,
    joined: tl.tensor,
    sums: tl.tensor,
    rows: tl.tensor,
    length: tl.tensor,
    width: tl.tensor,
    per_text: tl.tensor,
    per_head: tl.tensor,
    per_row: tl.tensor,
    size: tl.constexpr,
    count: tl.constexpr,
    row_tile: tl.constexpr,
    column_tile: tl.constexpr,
    stages: tl.constexpr,
) -> None:
    column = tl.program_id(1) * column_tile + tl.arange(0, column_tile)
    within = column < width
    beside = (column // size).to(tl.int64) * per_head + column % size
    one = tl.zeros([row_tile, column_tile], tl.float32)
    two = tl.zeros([row_tile, column_tile], tl.float32)
    three = tl.zeros([row_tile, column_tile], tl.float32)
    begin, step = tl.program_id(0) * row_tile, tl.num_programs(0) * row_tile
    for start in tl.range(begin, rows, step, num_stages=stages):
        row = start + tl.arange(0, row_tile)
        known = (row < rows)[:, None] & within[None, :]
        text = row // length
        down = text.to(tl.int64) * per_text + (row - text * length).to(tl.int64) * per_row
        at = down[:, None] + beside[None, :]
        to = joined + (row.to(tl.int64) * count)[:, None] * width + column[None, :]
        found = tl.load(first + at, mask=known, other=0.0)
        tl.store(to, found, mask=known)
        one += found.to(tl.float32)
        found = tl.load(second + at, mask=known, other=0.0)
        tl.store(to + width, found, mask=known)
        two += found.to(tl.float32)
        if third is not None:
            found = tl.load(third + at, mask=known, other=0.0)
            tl.store(to + 2 * width, found, mask=known)
            three += found.to(tl.float32)
    target = sums + tl.program_id(0) * count * width + column
    tl.store(target, tl.sum(one, 0), mask=within)
    tl.store(target + width, tl.sum(two, 0), mask=within)
    if third is not None:
        tl.store(target + 2 * width, tl.sum(three, 0), mask=within)
