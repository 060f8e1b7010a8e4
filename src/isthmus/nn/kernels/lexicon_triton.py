"""The largest logit of each text and term on a GPU: no logit is ever written to memory.

Triton kernels; lexicon.py chooses, and has the same in plain torch. Measurements, and why the
backward pass gathers instead of multiplying: docs/decisions/lexicon-kernels.md.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as functional
import triton
import triton.language as tl
from torch import Tensor

from isthmus.nn.kernels.available import has_triton


class Tiles(NamedTuple):
    """What one program of the forward kernel works on at a time, and with what."""

    terms: int
    tokens: int
    width: int
    warps: int
    stages: int
    rows: int = 16  # texts that one program reads: only after the last is a tile not full
    slots: int = 8  # tokens compared at once


# The quickest of those that fit, on an H200: the first takes all the
# memory that its multiprocessors share, the second what others have too.
_LARGE = Tiles(terms=256, tokens=128, width=64, warps=8, stages=4)
_MAXIMA = 1 << 13  # bytes shared to find them
_SMALL = Tiles(terms=128, tokens=128, width=64, warps=4, stages=3)


class Gathering(NamedTuple):
    """What one program of the backward kernels gathers at a time: vectors, and columns of them.

    Loops have no stages: those would keep vectors out of the fastest cache.
    """

    vectors: int
    columns: int
    warps: int


RANGES = Gathering(vectors=16, columns=128, warps=2)
PLACES = Gathering(vectors=64, columns=64, warps=2)
# Terms from which fewer columns are gathered at a time, so that those of all terms stay in the
# cache: of a quarter of a million, 64 are 32 MB in bf16.
_MANY_TERMS = 1 << 16


def tiles_for(device: torch.device) -> Tiles:
    """The largest that its multiprocessors have memory for."""
    wanted = 2 * _LARGE.stages * _LARGE.width * (_LARGE.terms + _LARGE.tokens)
    fits = has_triton(device, wanted + _MAXIMA)
    return _LARGE if fits else _SMALL


def find_largest(
    features: Tensor,
    matrix: Tensor,
    bias: Tensor | None,
    inside: Tensor,
    with_places: bool,
    tiles: Tiles | None = None,
) -> tuple[Tensor, Tensor | None]:
    """The largest logit [rows, terms] in float32, and its place among all positions, in int32.

    Of equal logits the first counts. 0 and the place -1 for a row without a position inside; NaN
    for one without any number.
    """
    tiles = tiles or tiles_for(features.device)
    rows, (terms, width) = len(inside), matrix.shape
    features = features.flatten(0, 1).contiguous()
    # The positions inside, one row after the other, then at least one -1: nothing else is
    # multiplied, and their number is not read from the device.
    nowhere = inside.numel()
    tokens = inside.flatten().nonzero_static(size=nowhere + 1, fill_value=-1)[:, 0].int()
    offsets = functional.pad(inside.sum(1).cumsum(0), (1, 0)).int()
    values = torch.zeros(rows, terms, dtype=torch.float32, device=features.device)
    places = torch.full_like(values, -1, dtype=torch.int32) if with_places else None
    grid = triton.cdiv(terms, tiles.terms), triton.cdiv(rows, tiles.rows)
    with torch.cuda.device(features.get_device()):
        _find[grid](
            features,
            matrix.contiguous(),
            bias,
            tokens,
            offsets,
            values,
            places,
            rows,
            terms,
            width,
            nowhere,
            whole=width % tiles.width == 0,
            term_tile=tiles.terms,
            token_tile=tiles.tokens,
            width_tile=tiles.width,
            row_tile=tiles.rows,
            slots=tiles.slots,
            num_warps=tiles.warps,
            num_stages=tiles.stages,
        )
    return values, places


def features_gradient(
    terms: Tensor,
    weights: Tensor,
    starts: Tensor,
    matrix: Tensor,
    gathering: Gathering = RANGES,
) -> Tensor:
    """Σ weights · matrix[terms] over each range from one start to the next, in float32."""
    count, width = len(starts) - 1, matrix.shape[1]
    gradient = torch.empty(count, width, dtype=torch.float32, device=matrix.device)
    columns, vectors = gathering.columns, gathering.vectors
    if len(matrix) >= _MANY_TERMS:
        columns, vectors = columns // 2, vectors * 2
    with torch.cuda.device(matrix.get_device()):
        _sum_ranges[count, triton.cdiv(width, columns)](
            terms,
            weights,
            starts,
            matrix.contiguous(),
            gradient,
            width,
            vector_tile=vectors,
            column_tile=columns,
            num_warps=gathering.warps,
        )
    return gradient


def matrix_gradient(
    places: Tensor, weights: Tensor, features: Tensor, gathering: Gathering = PLACES
) -> Tensor:
    """Σ weights · features[places] over the rows of both, in float32 [terms, width]."""
    (rows, terms), width = places.shape, features.shape[1]
    gradient = torch.empty(terms, width, dtype=torch.float32, device=features.device)
    grid = triton.cdiv(terms, gathering.vectors), triton.cdiv(width, gathering.columns)
    with torch.cuda.device(features.get_device()):
        _sum_places[grid](
            places,
            weights,
            features.contiguous(),
            gradient,
            rows,
            terms,
            width,
            term_tile=gathering.vectors,
            column_tile=gathering.columns,
            narrow=features.numel() < 1 << 31,
            num_warps=gathering.warps,
        )
    return gradient


@triton.jit  # type: ignore[untyped-decorator]
def _product(
    sources: tl.tensor,
    features: tl.tensor,
    position: tl.tensor,
    width: tl.tensor,
    whole: tl.constexpr,
    width_tile: tl.constexpr,
) -> tl.tensor:
    """Logits [terms, tokens]: a thread then holds many tokens of one term."""
    targets = features + position[None, :] * width
    column = tl.arange(0, width_tile)
    logits = tl.zeros([sources.shape[0], position.shape[0]], tl.float32)
    for step in range(0, width, width_tile):
        at = step + column
        if whole:
            left = tl.load(sources + at[None, :])
            right = tl.load(targets + at[:, None])
        else:
            left = tl.load(sources + at[None, :], mask=(at < width)[None, :], other=0.0)
            right = tl.load(targets + at[:, None], mask=(at < width)[:, None], other=0.0)
        logits = tl.dot(left, right, logits, input_precision="ieee")
    return logits


@triton.jit  # type: ignore[untyped-decorator]
def _part(logits: tl.tensor, number: tl.constexpr, slots: tl.constexpr) -> tl.tensor:
    """So many columns of the logits, found by halves: a choice of registers, no instruction."""
    part = logits
    for level in tl.static_range(1, 16):
        if logits.shape[1] >> level >= slots:
            halves = tl.reshape(part, [logits.shape[0], 2, logits.shape[1] >> level])
            left, right = tl.split(tl.permute(halves, [0, 2, 1]))
            part = right if number * slots // (logits.shape[1] >> level) % 2 == 1 else left
    return part


@triton.jit(do_not_specialize=["rows"])  # type: ignore[untyped-decorator]
def _find(
    features: tl.tensor,
    matrix: tl.tensor,
    bias: tl.tensor,
    tokens: tl.tensor,
    offsets: tl.tensor,
    values: tl.tensor,
    places: tl.tensor,
    rows: tl.tensor,
    terms: tl.tensor,
    width: tl.tensor,
    nowhere: tl.tensor,
    whole: tl.constexpr,
    term_tile: tl.constexpr,
    token_tile: tl.constexpr,
    width_tile: tl.constexpr,
    row_tile: tl.constexpr,
    slots: tl.constexpr,
) -> None:
    """A logit is compared once, with the best so far of its text and slot.

    Only where a text ends are some compared again, and is the best of all slots looked for.
    """
    row = tl.program_id(1) * row_tile
    last = tl.minimum(row + row_tile, rows)
    term = tl.program_id(0) * term_tile + tl.arange(0, term_tile)
    known = term < terms
    # Past the last term, that one again: cheaper than masks.
    sources = matrix + tl.minimum(term, terms - 1)[:, None] * width
    slot = tl.arange(0, token_tile)
    begin = tl.load(offsets + row)
    end = tl.load(offsets + row + 1)
    # Known before it is needed.
    after = tl.load(offsets + row + 2, mask=row + 1 < last, other=0)
    finish = tl.load(offsets + last)
    best = tl.full([term_tile, slots], float("-inf"), tl.float32)
    place = tl.full([term_tile, slots], 0, tl.int32) + nowhere
    for start in range(begin, finish, token_tile):
        position = tl.load(tokens + tl.minimum(start + slot, finish - 1)).to(tl.int64)
        logits = _product(sources, features, position, width, whole, width_tile)
        for number in tl.static_range(token_tile // slots):
            part = _part(logits, number, slots)
            stop = start + number * slots + slots
            entry = stop - slots + tl.arange(0, slots)
            # Of equal ones the first stays, and NaN is never better.
            better = (entry < end)[None, :] & (part > best)
            best = tl.where(better, part, best)
            if places is not None:
                place = tl.where(better, entry[None, :], place)
            while (row < last) & (end <= stop):
                kept = known & (end > begin)
                target = row.to(tl.int64) * terms + term
                top = tl.max(best, 1)
                found = tl.where(top == float("-inf"), float("nan"), top)
                if bias is not None:
                    found += tl.load(bias + term, mask=known, other=0.0)
                tl.store(values + target, found, mask=kept)
                if places is not None:
                    first = tl.min(tl.where(best == top[:, None], place, nowhere), 1)
                    tl.store(places + target, tl.load(tokens + first), mask=kept)
                row += 1
                begin = end
                end = after
                after = tl.load(offsets + row + 2, mask=row + 1 < last, other=0)
                better = ((entry >= begin) & (entry < end))[None, :] & (part > float("-inf"))
                best = tl.where(better, part, float("-inf"))
                if places is not None:
                    place = tl.where(better, entry[None, :], nowhere)


@triton.jit  # type: ignore[untyped-decorator]
def _rarely(
    places: tl.tensor, weights: tl.tensor, entry: tl.tensor, known: tl.tensor
) -> tuple[tl.tensor, tl.tensor]:
    """Loads what is read once, without displacing vectors from the cache."""
    place = tl.load(places + entry, mask=known, other=0, eviction_policy="evict_first")
    weight = tl.load(weights + entry, mask=known, other=0.0, eviction_policy="evict_first")
    return place, weight


@triton.jit  # type: ignore[untyped-decorator]
def _sum_ranges(
    terms: tl.tensor,
    weights: tl.tensor,
    starts: tl.tensor,
    matrix: tl.tensor,
    gradient: tl.tensor,
    width: tl.tensor,
    vector_tile: tl.constexpr,
    column_tile: tl.constexpr,
) -> None:
    place = tl.program_id(0)
    column = tl.program_id(1) * column_tile + tl.arange(0, column_tile)
    within = column < width
    begin = tl.load(starts + place)
    finish = tl.load(starts + place + 1)
    total = tl.zeros([vector_tile, column_tile], tl.float32)
    entry = begin + tl.arange(0, vector_tile)
    term, weight = _rarely(terms, weights, entry, entry < finish)
    for _ in tl.range(begin, finish, vector_tile, num_stages=1):
        known = entry < finish
        vectors = tl.load(
            matrix + term[:, None] * width + column[None, :],
            mask=known[:, None] & within[None, :],
            other=0.0,
            eviction_policy="evict_last",
        )
        entry += vector_tile
        scale = weight
        # Loaded before the vectors have arrived.
        term, weight = _rarely(terms, weights, entry, entry < finish)
        total += scale[:, None] * vectors.to(tl.float32)
    target = gradient + place.to(tl.int64) * width + column
    tl.store(target, tl.sum(total, 0), mask=within)


@triton.jit(do_not_specialize=["rows"])  # type: ignore[untyped-decorator]
def _sum_places(
    places: tl.tensor,
    weights: tl.tensor,
    features: tl.tensor,
    gradient: tl.tensor,
    rows: tl.tensor,
    terms: tl.tensor,
    width: tl.tensor,
    term_tile: tl.constexpr,
    column_tile: tl.constexpr,
    narrow: tl.constexpr,
) -> None:
    term = tl.program_id(0) * term_tile + tl.arange(0, term_tile)
    column = tl.program_id(1) * column_tile + tl.arange(0, column_tile)
    known, within = term < terms, column < width
    total = tl.zeros([term_tile, column_tile], tl.float32)
    source = term.to(tl.int64)
    place, weight = _rarely(places, weights, source, known & (rows > 0))
    for row in tl.range(0, rows, num_stages=1):
        begin = (place if narrow else place.to(tl.int64)) * width
        # A vector of weight 0 is not fetched: after a relu, most are.
        vectors = tl.load(
            features + begin[:, None] + column[None, :],
            mask=(weight != 0)[:, None] & within[None, :],
            other=0.0,
            eviction_policy="evict_last",
        )
        source += terms
        scale = weight
        place, weight = _rarely(places, weights, source, known & (row + 1 < rows))
        total += scale[:, None] * vectors.to(tl.float32)
    target = gradient + term.to(tl.int64)[:, None] * width + column[None, :]
    tl.store(target, total, mask=known[:, None] & within[None, :])
