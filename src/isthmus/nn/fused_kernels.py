"""What lies between a layer's matrix products, on a GPU: each in one kernel forward and one back.

Triton kernels; nn/fused.py chooses, and says the same in plain torch. All of them are limited by
the bytes they move, so nothing is written that can be had again: which numbers were dropped is
drawn a second time on the way back, eight decisions from one draw. docs/decisions/own-layers.md.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

_ROWS = tl.constexpr(8)  # that share a draw: 16 of its 128 bits each
_TAG = tl.constexpr(0x69737468)  # keeps these draws apart from torch's own
_STEPS = 1 << 16
# Programs of the backward kernels: sums over all rows are kept in as many pieces.
_PER_PROCESSOR = 4
_COLUMNS = 256


class Draw(NamedTuple):
    """Which numbers are dropped: a seed, a place in its stream, and how many of 65,536."""

    seed: int
    place: int
    dropped: int

    @classmethod
    def next(cls, rate: float, device: torch.device) -> Draw:
        """The next of torch's generator, which is not asked for a number but moved on."""
        dropped = min(round(rate * _STEPS), _STEPS - 1)
        if not dropped:
            return cls(0, 0, 0)
        if device.type != "cuda":
            return cls(int(torch.randint(2**62, ())), 0, dropped)
        generator = torch.cuda.default_generators[device.index]
        place = generator.get_offset()
        generator.set_offset(place + 4)  # it counts in fours
        return cls(generator.initial_seed(), place, dropped)


def norm_forward(
    states: Tensor,
    bias: Tensor,
    residual: Tensor,
    weight: Tensor,
    offset: Tensor,
    epsilon: float,
    draw: Draw,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    """norm(residual + dropped(states + bias)) of rows [rows, width], in `dtype`.

    Then what was normed, in the type of the states, and of every row its mean and 1 / deviation.
    """
    rows, width = states.shape
    summed = torch.empty_like(states)
    normed = torch.empty_like(states, dtype=dtype)
    moments = torch.empty(rows, 2, dtype=torch.float32, device=states.device)
    tile = triton.next_power_of_2(width)
    with _on(states):
        _norm_forward[(triton.cdiv(rows, _ROWS.value),)](
            states, bias, residual, weight, offset, summed, normed, moments,
            rows, width, epsilon, draw.seed, draw.place, draw.dropped,
            drops=draw.dropped > 0,
            tile=tile,
            num_warps=_warps(tile),
        )  # fmt: skip
    return normed, summed, moments


def norm_backward(
    above: Tensor,
    beside: Tensor | None,
    summed: Tensor,
    moments: Tensor,
    weight: Tensor,
    draw: Draw,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of the states, of the residual in `dtype`, and of weight, offset and bias.

    `above` and `beside`: what comes back for the result, from two who used it.
    """
    rows, width = summed.shape
    for_residual = torch.empty_like(summed, dtype=dtype)
    # Where nothing was dropped, both are the same.
    same = not draw.dropped and dtype == summed.dtype
    for_states = for_residual if same else torch.empty_like(summed)
    tile = triton.next_power_of_2(width)
    programs = min(triton.cdiv(rows, _ROWS.value), _programs(summed.device))
    sums = torch.empty(programs, 3, width, dtype=torch.float32, device=summed.device)
    with _on(summed):
        _norm_backward[(programs,)](
            above, beside, summed, moments, weight, for_states, for_residual, sums,
            rows, width, draw.seed, draw.place, draw.dropped,
            drops=draw.dropped > 0,
            same=same,
            tile=tile,
            num_warps=_warps(tile),
        )  # fmt: skip
    return for_states, for_residual, sums.sum(0)


def gelu_forward(states: Tensor, bias: Tensor) -> Tensor:
    """GELU(states + bias), of rows [rows, width]."""
    rows, width = states.shape
    active = torch.empty_like(states)
    with _on(states):
        _gelu_forward[triton.cdiv(rows, _ROWS.value), triton.cdiv(width, _COLUMNS)](
            states, bias, active, rows, width, columns=_COLUMNS, num_warps=4
        )
    return active


def gelu_backward(above: Tensor, states: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of the states and of the bias."""
    rows, width = states.shape
    gradient = torch.empty_like(states)
    parts = triton.cdiv(width, _COLUMNS)
    programs = min(triton.cdiv(rows, _ROWS.value), triton.cdiv(2 * _programs(states.device), parts))
    sums = torch.empty(programs, width, dtype=torch.float32, device=states.device)
    with _on(states):
        _gelu_backward[programs, parts](
            above, states, bias, gradient, sums, rows, width, columns=_COLUMNS, num_warps=4
        )
    return gradient, sums.sum(0)


def _on(states: Tensor) -> torch.cuda.device:
    return torch.cuda.device(states.get_device())


def _warps(tile: int) -> int:
    """So that a thread holds eight numbers, which it loads at once."""
    return min(max(tile // 256, 1), 16)


@lru_cache
def _programs(device: torch.device) -> int:
    if device.type != "cuda":
        return 3
    return _PER_PROCESSOR * torch.cuda.get_device_properties(device).multi_processor_count


@triton.jit  # type: ignore[untyped-decorator]
def _bits(
    one: tl.tensor, two: tl.tensor, three: tl.tensor, four: tl.tensor, number: tl.constexpr
) -> tl.tensor:
    """The sixteen bits that row `number` of eight takes of a draw of four words."""
    if number < 2:
        word = one
    elif number < 4:
        word = two
    elif number < 6:
        word = three
    else:
        word = four
    return (word >> (16 * (number % 2))) & 0xFFFF


@triton.jit  # type: ignore[untyped-decorator]
def _drawn(
    seed: tl.tensor, place: tl.tensor, group: tl.tensor, column: tl.tensor
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """128 bits for every column of eight rows."""
    nothing = column * 0
    one, two, three, four = tl.philox(
        seed, column, nothing + group, nothing + place.to(tl.int32), nothing + _TAG
    )
    return one, two, three, four


@triton.jit(do_not_specialize=["rows", "seed", "place", "dropped"])  # type: ignore[untyped-decorator]
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
    place: tl.tensor,
    dropped: tl.tensor,
    drops: tl.constexpr,
    tile: tl.constexpr,
) -> None:
    group = tl.program_id(0)
    column = tl.arange(0, tile)
    within = column < width
    added = tl.load(bias + column, mask=within, other=0.0).to(tl.float32)
    scale = tl.load(weight + column, mask=within, other=0.0).to(tl.float32)
    shift = tl.load(offset + column, mask=within, other=0.0).to(tl.float32)
    if drops:
        one, two, three, four = _drawn(seed, place, group, column)
        kept_scale = 65536.0 / (65536 - dropped).to(tl.float32)
    for number in tl.static_range(_ROWS):
        row = group * _ROWS + number
        known = within & (row < rows)
        at = row.to(tl.int64) * width + column
        value = tl.load(states + at, mask=known, other=0.0).to(tl.float32) + added
        if drops:
            kept = _bits(one, two, three, four, number) >= dropped
            value = tl.where(kept, value * kept_scale, 0.0)
        value += tl.load(residual + at, mask=known, other=0.0).to(tl.float32)
        # What is kept for the way back is what is normed.
        rounded = value.to(summed.dtype.element_ty)
        tl.store(summed + at, rounded, mask=known)
        value = tl.where(within, rounded.to(tl.float32), 0.0)
        mean = tl.sum(value, 0) / width
        centred = tl.where(within, value - mean, 0.0)
        inverse = tl.rsqrt(tl.sum(centred * centred, 0) / width + epsilon)
        result = centred * inverse * scale + shift
        tl.store(normed + at, result.to(normed.dtype.element_ty), mask=known)
        tl.store(moments + row * 2, mean, mask=row < rows)
        tl.store(moments + row * 2 + 1, inverse, mask=row < rows)


@triton.jit(do_not_specialize=["rows", "seed", "place", "dropped"])  # type: ignore[untyped-decorator]
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
    place: tl.tensor,
    dropped: tl.tensor,
    drops: tl.constexpr,
    same: tl.constexpr,
    tile: tl.constexpr,
) -> None:
    column = tl.arange(0, tile)
    within = column < width
    scale = tl.load(weight + column, mask=within, other=0.0).to(tl.float32)
    for_weight = tl.zeros([tile], tl.float32)
    for_offset = tl.zeros([tile], tl.float32)
    for_bias = tl.zeros([tile], tl.float32)
    if drops:
        kept_scale = 65536.0 / (65536 - dropped).to(tl.float32)
    for group in range(tl.program_id(0), tl.cdiv(rows, _ROWS), tl.num_programs(0)):
        if drops:
            one, two, three, four = _drawn(seed, place, group, column)
        for number in tl.static_range(_ROWS):
            row = group * _ROWS + number
            known = within & (row < rows)
            at = row.to(tl.int64) * width + column
            slope = tl.load(above + at, mask=known, other=0.0).to(tl.float32)
            if beside is not None:
                slope += tl.load(beside + at, mask=known, other=0.0).to(tl.float32)
            value = tl.load(summed + at, mask=known, other=0.0).to(tl.float32)
            mean = tl.load(moments + row * 2, mask=row < rows, other=0.0)
            inverse = tl.load(moments + row * 2 + 1, mask=row < rows, other=0.0)
            unit = tl.where(within, (value - mean) * inverse, 0.0)
            for_weight += slope * unit
            for_offset += slope
            slope *= scale
            along = tl.sum(slope * unit, 0) / width
            level = tl.sum(slope, 0) / width
            gradient = (slope - unit * along - level) * inverse
            gradient = tl.where(known, gradient, 0.0)
            tl.store(for_residual + at, gradient.to(for_residual.dtype.element_ty), mask=known)
            if drops:
                kept = _bits(one, two, three, four, number) >= dropped
                gradient = tl.where(kept, gradient * kept_scale, 0.0)
            for_bias += gradient
            if not same:
                tl.store(for_states + at, gradient.to(for_states.dtype.element_ty), mask=known)
    target = sums + tl.program_id(0) * 3 * width + column
    tl.store(target, for_weight, mask=within)
    tl.store(target + width, for_offset, mask=within)
    tl.store(target + 2 * width, for_bias, mask=within)


@triton.jit  # type: ignore[untyped-decorator]
def _below(value: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
    """The normal distribution below a value, and exp(-value² / 2).

    Abramowitz and Stegun, 7.1.26, wrong by 1e-7 at most: torch's erf takes more instructions than
    the memory gives time for, and the exponential is wanted anyway.
    """
    distance = tl.abs(value) * 0.7071067811865476
    bell = tl.exp(-distance * distance)
    part = 1.0 / (1.0 + 0.3275911 * distance)
    tail = 1.061405429 * part - 1.453152027
    tail = tail * part + 1.421413741
    tail = tail * part - 0.284496736
    tail = tail * part + 0.254829592
    tail = 0.5 * tail * part * bell
    return tl.where(value < 0, tail, 1.0 - tail), bell


@triton.jit(do_not_specialize=["rows"])  # type: ignore[untyped-decorator]
def _gelu_forward(
    states: tl.tensor,
    bias: tl.tensor,
    active: tl.tensor,
    rows: tl.tensor,
    width: tl.tensor,
    columns: tl.constexpr,
) -> None:
    row = tl.program_id(0) * _ROWS + tl.arange(0, _ROWS)
    column = tl.program_id(1) * columns + tl.arange(0, columns)
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
    columns: tl.constexpr,
) -> None:
    column = tl.program_id(1) * columns + tl.arange(0, columns)
    added = tl.load(bias + column, mask=column < width, other=0.0).to(tl.float32)
    total = tl.zeros([_ROWS, columns], tl.float32)
    for start in range(tl.program_id(0) * _ROWS, rows, tl.num_programs(0) * _ROWS):
        row = start + tl.arange(0, _ROWS)
        known = (row < rows)[:, None] & (column < width)[None, :]
        at = row.to(tl.int64)[:, None] * width + column[None, :]
        value = tl.load(states + at, mask=known, other=0.0).to(tl.float32) + added[None, :]
        slope = tl.load(above + at, mask=known, other=0.0).to(tl.float32)
        below, bell = _below(value)
        slope *= below + value * bell * 0.3989422804014327
        tl.store(gradient + at, slope.to(gradient.dtype.element_ty), mask=known)
        total += slope
    target = sums + tl.program_id(0) * width + column
    tl.store(target, tl.sum(total, 0), mask=column < width)
