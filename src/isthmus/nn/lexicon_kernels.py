"""The largest logit of each text and term on a GPU: no logit is ever written to memory.

Triton kernels; nn/lexicon.py chooses, and says the same in plain torch. What they cost, and why the
backward pass gathers instead of multiplying: docs/decisions/lexicon-kernels.md.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as functional
import triton
import triton.language as tl
from torch import Tensor


class Tiles(NamedTuple):
    """What one program of the forward kernel works on at a time, and with what."""

    terms: int
    tokens: int
    width: int
    warps: int
    stages: int
    registers: int | None = None  # of a thread, at most
    rows: int = 8  # texts that one program reads: only behind the last is a tile not full
    reach: int = 0  # positions, padding among them, up to which it reads twice as many, and again
    slots: int = 0  # tokens compared at once, all texts in one pass; 0: a pass over the tile each


# Of six shapes the quickest on an H200, by 2 to 34 % (benchmarks/lexicon_head.py).
TILES = Tiles(terms=128, tokens=128, width=64, warps=4, stages=3)


class Gathering(NamedTuple):
    """The same of the backward kernels: some vectors at a time, and some columns of them."""

    vectors: int = 32
    columns: int = 128
    warps: int = 4
    stages: int = 1
    unroll: int = 1  # steps of the loop that are written out
    # The next places are asked for before this step's vectors: without stages, which keep vectors
    # out of the fastest cache.
    ahead: bool = False
    hints: bool = False  # vectors are kept in the caches, places and weights are not
    beside: bool = False  # programs of other columns follow, not those of other vectors
    narrow: bool = False  # where features fit, they are counted in 32 bits: fewer instructions


# Ranges are of any length, and so many programs share a multiprocessor that each may wait for what
# it asked. Rows are known: three are on their way at a time, in half the time of one.
RANGES = Gathering()
PLACES = Gathering(stages=3)
# Terms from which fewer columns are gathered at a time, so that those of all terms stay in the
# cache: of a quarter of a million, 64 are 32 MB in bf16.
_MANY_TERMS = 1 << 16


def find_largest(
    features: Tensor,
    matrix: Tensor,
    bias: Tensor | None,
    inside: Tensor,
    with_places: bool,
    tiles: Tiles = TILES,
) -> tuple[Tensor, Tensor | None]:
    """The largest logit [rows, terms] in float32, and its place among all positions, in int32.

    Of equal logits the first counts. 0 and the place -1 for a row without a position inside; NaN
    for one without any number.
    """
    rows, (terms, width) = len(inside), matrix.shape
    features = features.flatten(0, 1).contiguous()
    # The positions inside, one row after the other: nothing else is multiplied, and the device
    # need not be asked how many there are. Behind them, and at least once, -1.
    nowhere = inside.numel()
    tokens = inside.flatten().nonzero_static(size=nowhere + 1, fill_value=-1)[:, 0].int()
    offsets = functional.pad(inside.sum(1).cumsum(0), (1, 0)).int()
    values = torch.zeros(rows, terms, dtype=torch.float32, device=features.device)
    places = torch.full_like(values, -1, dtype=torch.int32) if with_places else None
    at_once = tiles.rows
    while 2 * at_once * inside.shape[1] <= tiles.reach and at_once < rows:
        at_once *= 2
    grid = triton.cdiv(terms, tiles.terms), triton.cdiv(rows, at_once)
    find, more = _find, {}
    if tiles.slots:
        find, more = _find_in_one_pass, {"slots": tiles.slots, "nowhere": nowhere}
    with torch.cuda.device(features.get_device()):
        find[grid](
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
            whole=width % tiles.width == 0,
            term_tile=tiles.terms,
            token_tile=tiles.tokens,
            width_tile=tiles.width,
            row_tile=at_once,
            **more,
            num_warps=tiles.warps,
            num_stages=tiles.stages,
            maxnreg=tiles.registers,
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
        _sum_ranges[_grid(count, triton.cdiv(width, columns), gathering.beside)](
            terms,
            weights,
            starts,
            matrix.contiguous(),
            gradient,
            width,
            vector_tile=vectors,
            column_tile=columns,
            stages=gathering.stages,
            unroll=gathering.unroll,
            ahead=gathering.ahead,
            rare="evict_first" if gathering.hints else "",
            often="evict_last" if gathering.hints else "",
            beside=gathering.beside,
            num_warps=gathering.warps,
        )
    return gradient


def matrix_gradient(
    places: Tensor, slopes: Tensor, features: Tensor, gathering: Gathering = PLACES
) -> Tensor:
    """Σ slopes · features[places] over the rows of places and slopes, in float32 [terms, width]."""
    (rows, terms), width = places.shape, features.shape[1]
    gradient = torch.empty(terms, width, dtype=torch.float32, device=features.device)
    blocks = triton.cdiv(terms, gathering.vectors), triton.cdiv(width, gathering.columns)
    with torch.cuda.device(features.get_device()):
        _sum_places[_grid(*blocks, gathering.beside)](
            places,
            slopes,
            features.contiguous(),
            gradient,
            rows,
            terms,
            width,
            term_tile=gathering.vectors,
            column_tile=gathering.columns,
            stages=gathering.stages,
            unroll=gathering.unroll,
            ahead=gathering.ahead,
            rare="evict_first" if gathering.hints else "",
            often="evict_last" if gathering.hints else "",
            beside=gathering.beside,
            narrow=gathering.narrow and features.numel() < 1 << 31,
            num_warps=gathering.warps,
        )
    return gradient


def _grid(vectors: int, columns: int, beside: bool) -> tuple[int, ...]:
    return (vectors * columns,) if beside else (vectors, columns)


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
    whole: tl.constexpr,
    term_tile: tl.constexpr,
    token_tile: tl.constexpr,
    width_tile: tl.constexpr,
    row_tile: tl.constexpr,
) -> None:
    row = tl.program_id(1) * row_tile
    last = tl.minimum(row + row_tile, rows)
    term = tl.program_id(0) * term_tile + tl.arange(0, term_tile)
    known = term < terms
    # Past the last term, that one again: cheaper than masks.
    sources = matrix + tl.minimum(term, terms - 1)[:, None] * width
    slot = tl.arange(0, token_tile)
    begin = tl.load(offsets + row)
    end = tl.load(offsets + row + 1)
    finish = tl.load(offsets + last)
    best = tl.full([term_tile], float("-inf"), tl.float32)
    place = tl.full([term_tile], -1, tl.int32)
    for start in range(begin, finish, token_tile):
        position = tl.load(tokens + tl.minimum(start + slot, finish - 1)).to(tl.int64)
        logits = _product(sources, features, position, width, whole, width_tile)
        # Each row that has tokens in this tile; the last one may go on in the next.
        going = (row < last) & (begin < start + token_tile)
        while going:
            seen = (slot >= begin - start) & (slot < end - start)
            top = tl.max(tl.where(seen[None, :], logits, float("-inf")), 1)
            better = top > best
            if places is not None:
                own = tl.where(seen, slot, token_tile)
                first = tl.min(tl.where(logits == top[:, None], own[None, :], token_tile), 1)
                place = tl.where(better, start + first, place)
            best = tl.where(better, top, best)
            going = end <= start + token_tile
            if going:
                kept = known & (end > begin)
                target = row.to(tl.int64) * terms + term
                found = tl.where(best == float("-inf"), float("nan"), best)
                if bias is not None:
                    found += tl.load(bias + term, mask=known, other=0.0)
                tl.store(values + target, found, mask=kept)
                if places is not None:
                    token = tl.load(tokens + place, mask=kept & (place >= 0), other=-1)
                    tl.store(places + target, token, mask=kept)
                best = tl.full([term_tile], float("-inf"), tl.float32)
                place = tl.full([term_tile], -1, tl.int32)
                row += 1
                begin = end
                end = tl.load(offsets + row + 1, mask=row < last, other=0)
                going = (row < last) & (begin < start + token_tile)


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
def _find_in_one_pass(
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
    """The same as _find, but a logit is compared once, with the best so far of its text and slot.

    Only where a text ends are some compared again, and is the best of all slots looked for.
    """
    row = tl.program_id(1) * row_tile
    last = tl.minimum(row + row_tile, rows)
    term = tl.program_id(0) * term_tile + tl.arange(0, term_tile)
    known = term < terms
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
def _block(width: tl.tensor, column_tile: tl.constexpr, beside: tl.constexpr) -> tl.tensor:
    """The number of this program's vectors, and of its columns."""
    if beside:
        blocks = tl.cdiv(width, column_tile)
        number = tl.program_id(0) // blocks, tl.program_id(0) % blocks
    else:
        number = tl.program_id(0), tl.program_id(1)
    return number


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
    stages: tl.constexpr,
    unroll: tl.constexpr,
    ahead: tl.constexpr,
    rare: tl.constexpr,
    often: tl.constexpr,
    beside: tl.constexpr,
) -> None:
    place, block = _block(width, column_tile, beside)
    column = block * column_tile + tl.arange(0, column_tile)
    within = column < width
    begin = tl.load(starts + place)
    finish = tl.load(starts + place + 1)
    total = tl.zeros([vector_tile, column_tile], tl.float32)
    entry = begin + tl.arange(0, vector_tile)
    if ahead:
        term = tl.load(terms + entry, mask=entry < finish, other=0, eviction_policy=rare)
        weight = tl.load(weights + entry, mask=entry < finish, other=0.0, eviction_policy=rare)
    for _ in tl.range(begin, finish, vector_tile, num_stages=stages, loop_unroll_factor=unroll):
        known = entry < finish
        if not ahead:
            term = tl.load(terms + entry, mask=known, other=0, eviction_policy=rare)
            weight = tl.load(weights + entry, mask=known, other=0.0, eviction_policy=rare)
        vectors = tl.load(
            matrix + term[:, None] * width + column[None, :],
            mask=known[:, None] & within[None, :],
            other=0.0,
            eviction_policy=often,
        )
        entry += vector_tile
        scale = weight
        if ahead:
            known = entry < finish
            term = tl.load(terms + entry, mask=known, other=0, eviction_policy=rare)
            weight = tl.load(weights + entry, mask=known, other=0.0, eviction_policy=rare)
        total += scale[:, None] * vectors.to(tl.float32)
    target = gradient + place.to(tl.int64) * width + column
    tl.store(target, tl.sum(total, 0), mask=within)


@triton.jit(do_not_specialize=["rows"])  # type: ignore[untyped-decorator]
def _sum_places(
    places: tl.tensor,
    slopes: tl.tensor,
    features: tl.tensor,
    gradient: tl.tensor,
    rows: tl.tensor,
    terms: tl.tensor,
    width: tl.tensor,
    term_tile: tl.constexpr,
    column_tile: tl.constexpr,
    stages: tl.constexpr,
    unroll: tl.constexpr,
    ahead: tl.constexpr,
    rare: tl.constexpr,
    often: tl.constexpr,
    beside: tl.constexpr,
    narrow: tl.constexpr,
) -> None:
    first, block = _block(width, column_tile, beside)
    term = first * term_tile + tl.arange(0, term_tile)
    column = block * column_tile + tl.arange(0, column_tile)
    known, within = term < terms, column < width
    total = tl.zeros([term_tile, column_tile], tl.float32)
    source = term.to(tl.int64)
    if ahead:
        place = tl.load(places + source, mask=known, other=0, eviction_policy=rare)
        slope = tl.load(slopes + source, mask=known, other=0.0, eviction_policy=rare)
    for row in tl.range(0, rows, num_stages=stages, loop_unroll_factor=unroll):
        if not ahead:
            place = tl.load(places + source, mask=known, other=0, eviction_policy=rare)
            slope = tl.load(slopes + source, mask=known, other=0.0, eviction_policy=rare)
        begin = (place if narrow else place.to(tl.int64)) * width
        # What has no slope is not fetched: after a relu, that is most of it.
        vectors = tl.load(
            features + begin[:, None] + column[None, :],
            mask=(slope != 0)[:, None] & within[None, :],
            other=0.0,
            eviction_policy=often,
        )
        source += terms
        scale = slope
        if ahead:
            more = known & (row + 1 < rows)
            place = tl.load(places + source, mask=more, other=0, eviction_policy=rare)
            slope = tl.load(slopes + source, mask=more, other=0.0, eviction_policy=rare)
        total += scale[:, None] * vectors.to(tl.float32)
    target = gradient + term.to(tl.int64)[:, None] * width + column[None, :]
    tl.store(target, total, mask=known[:, None] & within[None, :])
