"""Attention within the short texts of a packed batch on a GPU, forward and backward.

Triton kernels; short_attention.py chooses. One program, or a few, computes a text and a head, in
tiles that fit short texts. Which weights dropout keeps and what a row may see are bits, 32 columns
of a row in a word: drawn or packed once, they cost next to nothing to read in the backward pass.
No atomics: gradients repeat to the bit. docs/decisions/own-layers.md.
"""

from __future__ import annotations

from math import log2
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from isthmus.nn.kernels.norm_gelu_triton import added

_BITS = tl.constexpr(32)  # of a word
_TAG = tl.constexpr(0x61747465)  # keeps these draws apart from others of the same seed
_ROUNDS = tl.constexpr(7)  # of Philox; fewer fail tests of randomness (Salmon et al., SC 2011)
_PLANES = tl.constexpr(16)  # random words that decide for 32 weights: bits of the rate
_STEPS = 1 << _PLANES.value
_ROWS_DRAWN = 256  # by a program
_MOST_ROWS = 256  # of any tile
_ANY = 1 << 30  # keys that no text has


class Tile(NamedTuple):
    """Queries and keys at a time, by how many warps, and how many loads are on their way."""

    queries: int
    keys: int
    warps: int
    stages: int
    # Of a thread, at most, where they are enough: heads of 64 and less that see all of their text.
    registers: int | None = None


class Tuning(NamedTuple):
    """How the kernels share the work: the first two tiles back hold all keys of a text.

    Registers and shared memory of each: docs/decisions/own-layers.md.
    """

    forward: Tile = Tile(64, 64, 4, 2, 128)
    short: Tile = Tile(32, 64, 4, 2)
    middle: Tile = Tile(32, 128, 8, 2)
    long: Tile = Tile(32, 64, 4, 2)
    long_queries: Tile = Tile(64, 64, 4, 2)


TUNING = Tuning()


class Texts(NamedTuple):
    """Where texts begin among queries and keys, and what their rows may see."""

    queries: Tensor  # int32 [texts + 1]
    keys: Tensor  # likewise
    longest: int  # no text has more queries or keys
    causal: bool = False
    seen: Tensor | None = None  # as `pack_bits` says it

    @property
    def number(self) -> int:
        """How many there are."""
        return len(self.queries) - 1


class Kept(NamedTuple):
    """Which weights dropout keeps, in bits [heads, words, queries], and what it scales them by."""

    bits: Tensor | None = None
    scale: float = 1.0


def words_of(columns: int) -> int:
    """The number of words that hold the bits of so many columns."""
    return -(-columns // int(_BITS.value))


def draw_kept(seed: Tensor, rate: float, rows: int, heads: int, longest: int) -> Kept:
    """The weights kept by dropout, drawn from a seed on the device, int64 [1], and their places.

    The rate is rounded to 1/65536, and the scale is that of the rounded rate.
    """
    kept = _STEPS - min(round(rate * _STEPS), _STEPS - 1)
    if kept == _STEPS:
        return Kept()
    words = words_of(longest)
    bits = _room(heads, words, rows, seed.device)
    if rows:
        with _on(seed):
            _draw[triton.cdiv(rows, _ROWS_DRAWN), heads * words](
                seed, bits, rows, words, kept, tile=_ROWS_DRAWN, num_warps=4
            )
    return Kept(bits, _STEPS / kept)


def pack_bits(visible: Tensor, number: int | None = None) -> Tensor:
    """Booleans [texts, rows, columns] of any strides, as bits [number, words, rows].

    The bits of texts beyond those of `visible` are undefined.
    """
    texts, rows, columns = visible.shape
    words = words_of(columns)
    bits = _room(max(texts, number or 0), words, rows, visible.device)
    if visible.numel():
        bytes_ = visible.view(torch.uint8)
        with _on(visible):
            _pack[triton.cdiv(rows, 128), words, texts](
                bytes_, bits, rows, columns, words, *bytes_.stride(), tile=128, num_warps=4
            )
    return bits


def forward(
    queries: Tensor, keys: Tensor, values: Tensor, texts: Texts, scale: float, kept: Kept
) -> tuple[Tensor, Tensor]:
    """Attention output of the queries [rows, heads, width], and log₂ of each softmax denominator.

    The last dimension must be contiguous. The output of a row that sees nothing is 0.
    """
    rows, heads, width = queries.shape
    answers = torch.empty(rows, heads, width, dtype=queries.dtype, device=queries.device)
    levels = torch.empty(heads, rows, dtype=torch.float32, device=queries.device)
    tile = TUNING.forward
    grid = texts.number * heads, triton.cdiv(texts.longest, tile.queries)
    if rows:
        with _on(queries):
            _forward[grid](
                queries, keys, values, answers, levels, *_offsets_and_bits(texts, kept),
                rows, heads, *_strides(queries, keys, values),
                scale * log2(2.718281828459045), kept.scale,
                **_shape(width, tile, texts),
            )  # fmt: skip
    return answers, levels


def backward(
    above: Tensor,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    answers: Tensor,
    levels: Tensor,
    texts: Texts,
    scale: float,
    kept: Kept,
    targets: tuple[Tensor, Tensor, Tensor],
) -> Tensor:
    """Writes the gradients of queries, keys and values into the targets.

    Returns the sum of each over all rows, [3, heads, width] in float32. That of keys is 0: what
    is added to all of them alike moves all logits of a row alike, and no weight.
    """
    rows, heads, width = queries.shape
    short, middle = TUNING.short.keys, TUNING.middle.keys
    least_tile = min(TUNING.long.keys, TUNING.long_queries.queries)
    blocks = triton.cdiv(texts.longest, least_tile) if texts.longest > middle else 1
    sums = torch.zeros(
        texts.number * blocks, 3, heads, width, dtype=torch.float32, device=queries.device
    )
    strides = *_strides(queries, keys, values), *_strides(*targets)
    given = (
        queries, keys, values, answers, above.contiguous(), levels, *targets, sums,
        *_offsets_and_bits(texts, kept), rows, heads, blocks, *strides,
        scale * log2(2.718281828459045), scale, kept.scale,
    )  # fmt: skip
    # Texts of few keys, of more, and of several blocks: programs of the others end at once.
    pairs = texts.number * heads
    with _on(queries):
        for tile, least, most in (
            (TUNING.short, -1, short),
            (TUNING.middle, short, middle),
            (TUNING.long, middle, _ANY),
        ):
            if texts.longest > least:
                own = most < _ANY
                grid = pairs, 1 if own else triton.cdiv(texts.longest, tile.keys)
                shape = _shape(width, tile, texts)
                _backward[grid](*given, least=least, most=most, with_queries=own, **shape)
        if texts.longest > middle:
            tile = TUNING.long_queries
            grid = pairs, triton.cdiv(texts.longest, tile.queries)
            _queries_backward[grid](*given, least=middle, **_shape(width, tile, texts))
    return added(sums)


def _room(outer: int, words: int, rows: int, device: torch.device) -> Tensor:
    """Memory for bits, with space after the last row for the rows that fill up a tile."""
    count = outer * words * rows
    room = torch.empty(count + _MOST_ROWS, dtype=torch.int32, device=device)
    return room[:count].view(outer, words, rows)


def _on(states: Tensor) -> torch.cuda.device:
    return torch.cuda.device(states.get_device())


def _offsets_and_bits(texts: Texts, kept: Kept) -> tuple[Tensor | int | None, ...]:
    """Offsets, and both kinds of bits with their numbers of words and rows."""
    seen = texts.seen
    return (
        texts.queries, texts.keys,
        seen, 0 if seen is None else seen.shape[1], 0 if seen is None else seen.shape[2],
        kept.bits, 0 if kept.bits is None else kept.bits.shape[1],
    )  # fmt: skip


def _strides(*parts: Tensor) -> tuple[int, ...]:
    for part in parts:
        assert part.stride(2) == 1, part.stride()
    return tuple(part.stride(dimension) for part in parts for dimension in (0, 1))


def _shape(width: int, tile: Tile, texts: Texts) -> dict[str, int | None]:
    lanes = max(triton.next_power_of_2(width), 16)
    enough = lanes <= 64 and texts.seen is None and not texts.causal
    return {
        "causal": texts.causal,
        "width": width,
        "lanes": lanes,
        "row_tile": tile.queries,
        "key_tile": tile.keys,
        "stages": tile.stages,
        "num_warps": tile.warps,
        "maxnreg": tile.registers if enough else None,
    }


@triton.jit(do_not_specialize=["rows", "words", "chance"])  # type: ignore[untyped-decorator]
def _draw(
    seed: tl.tensor,
    bits: tl.tensor,
    rows: tl.tensor,
    words: tl.tensor,
    chance: tl.tensor,
    tile: tl.constexpr,
) -> None:
    """Writes bits that are 1 with a probability of chance / 2¹⁶."""
    row = tl.program_id(0) * tile + tl.arange(0, tile)
    part = tl.program_id(1)
    key = tl.load(seed)
    nothing = row * 0
    word = nothing
    # The last binary digit of the chance first. Where it is 1, OR with random bits makes a chance
    # of (1 + chance so far) / 2; where it is 0, AND makes half of it: a majority says both.
    for group in tl.static_range(_PLANES // 4):
        one, two, three, four = tl.philox(
            key,
            row,
            nothing + part // words,
            nothing + (part % words) * (_PLANES // 4) + group,
            nothing + _TAG,
            _ROUNDS,
        )
        word = _majority(word, one, -((chance >> (4 * group)) & 1))
        word = _majority(word, two, -((chance >> (4 * group + 1)) & 1))
        word = _majority(word, three, -((chance >> (4 * group + 2)) & 1))
        word = _majority(word, four, -((chance >> (4 * group + 3)) & 1))
    tl.store(bits + part.to(tl.int64) * rows + row, word, mask=row < rows)


@triton.jit  # type: ignore[untyped-decorator]
def _majority(word: tl.tensor, random: tl.tensor, digit: tl.tensor) -> tl.tensor:
    other = random.to(tl.int32, bitcast=True)
    return (word & other) | (digit & (word | other))


@triton.jit(do_not_specialize=["rows", "columns", "words", "text_stride", "row_stride", "stride"])  # type: ignore[untyped-decorator]
def _pack(
    visible: tl.tensor,
    bits: tl.tensor,
    rows: tl.tensor,
    columns: tl.tensor,
    words: tl.tensor,
    text_stride: tl.tensor,
    row_stride: tl.tensor,
    stride: tl.tensor,
    tile: tl.constexpr,
) -> None:
    row = tl.program_id(0) * tile + tl.arange(0, tile)
    part, text = tl.program_id(1), tl.program_id(2).to(tl.int64)
    bit = tl.arange(0, _BITS)
    column = part * _BITS + bit
    known = (column < columns)[:, None] & (row < rows)[None, :]
    at = column.to(tl.int64)[:, None] * stride + row.to(tl.int64)[None, :] * row_stride
    found = tl.load(visible + text * text_stride + at, mask=known, other=0)
    word = tl.sum(tl.where(found != 0, (bit * 0 + 1 << bit)[:, None], 0), 0)
    tl.store(bits + (text * words + part) * rows + row, word, mask=row < rows)


@triton.jit  # type: ignore[untyped-decorator]
def _head(
    base: tl.tensor, begin: tl.tensor, stride: tl.tensor, head: tl.tensor, head_stride: tl.tensor
) -> tl.tensor:
    """Where a head of a text begins; within it 32 bits are enough, and half the registers."""
    return base + begin.to(tl.int64) * stride + head * head_stride


@triton.jit  # type: ignore[untyped-decorator]
def _rows(
    base: tl.tensor,
    row: tl.tensor,
    stride: tl.tensor,
    known: tl.tensor,
    width: tl.constexpr,
    lanes: tl.constexpr,
) -> tl.tensor:
    """The numbers of a head in rows of a text, [rows, lanes], 0 where there are none."""
    lane = tl.arange(0, lanes)
    at = base + (row[:, None] * stride + lane[None, :])
    if width == lanes:
        found = tl.load(at, mask=known[:, None], other=0.0)
    else:
        found = tl.load(at, mask=known[:, None] & (lane < width)[None, :], other=0.0)
    return found


@triton.jit  # type: ignore[untyped-decorator]
def _put(
    base: tl.tensor,
    row: tl.tensor,
    stride: tl.tensor,
    known: tl.tensor,
    numbers: tl.tensor,
    width: tl.constexpr,
    lanes: tl.constexpr,
) -> None:
    lane = tl.arange(0, lanes)
    at = base + (row[:, None] * stride + lane[None, :])
    rounded = numbers.to(base.dtype.element_ty)
    tl.store(at, rounded, mask=known[:, None] & (lane < width)[None, :])


@triton.jit  # type: ignore[untyped-decorator]
def _bits(
    words: tl.tensor,
    count: tl.tensor,
    stride: tl.tensor,
    row: tl.tensor,
    first: tl.tensor,
    columns: tl.constexpr,
    along: tl.constexpr,
) -> tl.tensor:
    """Whether the bit of each row and column is 1, where columns lie `along` a dimension.

    The columns begin at `first`, a multiple of 32. Bits after the last row and column are
    undefined.
    """
    part = first // _BITS
    column = tl.expand_dims(tl.arange(0, columns), 1 - along)
    # Which word a thread wants is mostly known when the kernel is compiled.
    chosen = tl.expand_dims(tl.load(words + part.to(tl.int64) * stride + row), along) + column * 0
    for number in tl.static_range(1, columns // _BITS):
        place = tl.minimum(part + number, count - 1).to(tl.int64)
        word = tl.load(words + place * stride + row)
        chosen = tl.where(column >= number * _BITS, tl.expand_dims(word, along), chosen)
    return ((chosen >> (column & (_BITS - 1))) & 1) != 0


@triton.jit(do_not_specialize=["seen_words", "seen_rows", "kept_words", "rows"])  # type: ignore[untyped-decorator]
def _forward(
    queries: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    answers: tl.tensor,
    levels: tl.tensor,
    query_offsets: tl.tensor,
    key_offsets: tl.tensor,
    seen: tl.tensor,
    seen_words: tl.tensor,
    seen_rows: tl.tensor,
    kept: tl.tensor,
    kept_words: tl.tensor,
    rows: tl.tensor,
    heads: tl.tensor,
    query_stride: tl.tensor,
    query_head: tl.tensor,
    key_stride: tl.tensor,
    key_head: tl.tensor,
    value_stride: tl.tensor,
    value_head: tl.tensor,
    scale: tl.tensor,
    kept_scale: tl.tensor,
    causal: tl.constexpr,
    width: tl.constexpr,
    lanes: tl.constexpr,
    row_tile: tl.constexpr,
    key_tile: tl.constexpr,
    stages: tl.constexpr,
) -> None:
    text, head = tl.program_id(0) // heads, tl.program_id(0) % heads
    begin = tl.load(query_offsets + text)
    count = tl.load(query_offsets + text + 1) - begin
    first_row = tl.program_id(1) * row_tile
    if first_row >= count:
        return
    key_begin = tl.load(key_offsets + text)
    key_count = tl.load(key_offsets + text + 1) - key_begin
    row = first_row + tl.arange(0, row_tile)
    row_known = row < count
    own_queries = _head(queries, begin, query_stride, head, query_head)
    own_keys = _head(keys, key_begin, key_stride, head, key_head)
    own_values = _head(values, key_begin, value_stride, head, value_head)
    query_rows = _rows(own_queries, row, query_stride, row_known, width, lanes)
    key = tl.arange(0, key_tile)
    top = tl.full([row_tile], float("-inf"), tl.float32)
    total = tl.zeros([row_tile], tl.float32)
    summed = tl.zeros([row_tile, lanes], tl.float32)
    end = key_count
    if causal:
        end = tl.minimum(end, first_row + row_tile)
    for first in tl.range(0, end, key_tile, num_stages=stages):
        column = first + key
        known = column < key_count
        key_rows = _rows(own_keys, column, key_stride, known, width, lanes)
        value_rows = _rows(own_values, column, value_stride, known, width, lanes)
        logits = tl.dot(query_rows, tl.trans(key_rows))
        allowed = known[None, :]
        if causal:
            allowed = allowed & (column[None, :] <= row[:, None])
        if seen is not None:
            own = seen + text.to(tl.int64) * seen_words * seen_rows
            allowed = allowed & _bits(own, seen_words, seen_rows, row, first, key_tile, 1)
        logits = tl.where(allowed, logits, float("-inf"))
        higher = tl.maximum(top, tl.max(logits, 1))
        base = tl.where(higher == float("-inf"), 0.0, higher)
        weights = tl.exp2(logits * scale - (base * scale)[:, None])
        shrink = tl.exp2((top - base) * scale)
        total = total * shrink + tl.sum(weights, 1)
        summed *= shrink[:, None]
        if kept is not None:
            own = kept + head.to(tl.int64) * kept_words * rows + begin
            stays = _bits(own, kept_words, rows, row, first, key_tile, 1)
            weights *= tl.where(stays, kept_scale, 0.0)
        summed = tl.dot(weights.to(value_rows.dtype), value_rows, summed)
        top = higher
    sees = total > 0
    share = tl.where(sees, 1.0 / tl.where(sees, total, 1.0), 0.0)
    stride = heads * width
    target = _head(answers, begin, stride, head, width)
    _put(target, row, stride, row_known, summed * share[:, None], width, lanes)
    # Of a row that sees nothing, so high that all its weights are 0 on the way back.
    level = tl.where(sees, top * scale + tl.log2(tl.where(sees, total, 1.0)), float("inf"))
    tl.store(levels + head.to(tl.int64) * rows + begin + row, level, mask=row_known)


@triton.jit(do_not_specialize=["seen_words", "seen_rows", "kept_words", "rows", "blocks"])  # type: ignore[untyped-decorator]
def _backward(
    queries: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    answers: tl.tensor,
    above: tl.tensor,
    levels: tl.tensor,
    for_queries: tl.tensor,
    for_keys: tl.tensor,
    for_values: tl.tensor,
    sums: tl.tensor,
    query_offsets: tl.tensor,
    key_offsets: tl.tensor,
    seen: tl.tensor,
    seen_words: tl.tensor,
    seen_rows: tl.tensor,
    kept: tl.tensor,
    kept_words: tl.tensor,
    rows: tl.tensor,
    heads: tl.tensor,
    blocks: tl.tensor,
    query_stride: tl.tensor,
    query_head: tl.tensor,
    key_stride: tl.tensor,
    key_head: tl.tensor,
    value_stride: tl.tensor,
    value_head: tl.tensor,
    for_query_stride: tl.tensor,
    for_query_head: tl.tensor,
    for_key_stride: tl.tensor,
    for_key_head: tl.tensor,
    for_value_stride: tl.tensor,
    for_value_head: tl.tensor,
    scale: tl.tensor,
    gradient_scale: tl.tensor,
    kept_scale: tl.tensor,
    least: tl.constexpr,
    most: tl.constexpr,
    with_queries: tl.constexpr,
    causal: tl.constexpr,
    width: tl.constexpr,
    lanes: tl.constexpr,
    row_tile: tl.constexpr,
    key_tile: tl.constexpr,
    stages: tl.constexpr,
) -> None:
    """Gradients of a block of keys and values; of the queries too, where it is all keys there are.

    Tiles are [keys, queries]: weights are then, as they are, the left side of two products.
    """
    text, head = tl.program_id(0) // heads, tl.program_id(0) % heads
    key_begin = tl.load(key_offsets + text)
    key_count = tl.load(key_offsets + text + 1) - key_begin
    first = tl.program_id(1) * key_tile
    if (key_count <= least) | (key_count > most) | (first > key_count):
        return
    begin = tl.load(query_offsets + text)
    count = tl.load(query_offsets + text + 1) - begin
    key = tl.arange(0, key_tile)
    column = first + key
    known = column < key_count
    stride = heads * width
    own_queries = _head(queries, begin, query_stride, head, query_head)
    own_keys = _head(keys, key_begin, key_stride, head, key_head)
    own_values = _head(values, key_begin, value_stride, head, value_head)
    own_above = _head(above, begin, stride, head, width)
    own_answers = _head(answers, begin, stride, head, width)
    own_levels = levels + head.to(tl.int64) * rows + begin
    key_rows = _rows(own_keys, column, key_stride, known, width, lanes)
    value_rows = _rows(own_values, column, value_stride, known, width, lanes)
    for_key_rows = tl.zeros([key_tile, lanes], tl.float32)
    for_value_rows = tl.zeros([key_tile, lanes], tl.float32)
    pulled = tl.zeros([key_tile], tl.float32)
    begin_row = 0
    if causal:
        begin_row = first // row_tile * row_tile
    for first_row in tl.range(begin_row, count, row_tile, num_stages=stages):
        row = first_row + tl.arange(0, row_tile)
        row_known = row < count
        query_rows = _rows(own_queries, row, query_stride, row_known, width, lanes)
        upstream = _rows(own_above, row, stride, row_known, width, lanes)
        answer = _rows(own_answers, row, stride, row_known, width, lanes)
        level = tl.load(own_levels + row, mask=row_known, other=float("inf"))
        along = tl.sum(answer.to(tl.float32) * upstream.to(tl.float32), 1)
        logits = tl.dot(key_rows, tl.trans(query_rows))
        allowed = known[:, None]
        if causal:
            allowed = allowed & (column[:, None] <= row[None, :])
        if seen is not None:
            own = seen + text.to(tl.int64) * seen_words * seen_rows
            allowed = allowed & _bits(own, seen_words, seen_rows, row, first, key_tile, 0)
        weights = tl.exp2(tl.where(allowed, logits, float("-inf")) * scale - level[None, :])
        for_weights = tl.dot(value_rows, tl.trans(upstream))
        passed = weights
        if kept is not None:
            own = kept + head.to(tl.int64) * kept_words * rows + begin
            stays = _bits(own, kept_words, rows, row, first, key_tile, 0)
            passed = weights * tl.where(stays, kept_scale, 0.0)
        for_value_rows = tl.dot(passed.to(upstream.dtype), upstream, for_value_rows)
        pull = passed * for_weights - weights * along[None, :]
        for_logits = pull.to(query_rows.dtype)
        for_key_rows = tl.dot(for_logits, query_rows, for_key_rows)
        if with_queries:
            pulled += tl.sum(pull, 1)
            for_query_rows = tl.trans(tl.dot(tl.trans(key_rows), for_logits)) * gradient_scale
            target = _head(for_queries, begin, for_query_stride, head, for_query_head)
            _put(target, row, for_query_stride, row_known, for_query_rows, width, lanes)
    for_key_rows *= gradient_scale
    target = _head(for_keys, key_begin, for_key_stride, head, for_key_head)
    _put(target, column, for_key_stride, known, for_key_rows, width, lanes)
    target = _head(for_values, key_begin, for_value_stride, head, for_value_head)
    _put(target, column, for_value_stride, known, for_value_rows, width, lanes)
    lane = tl.arange(0, lanes)
    own = sums + ((text * blocks + tl.program_id(1)).to(tl.int64) * 3 * heads + head) * width + lane
    if with_queries:
        # Their sum, by way of the keys: it takes fewer registers.
        key_rows = _rows(own_keys, column, key_stride, known, width, lanes).to(tl.float32)
        for_all_queries = tl.sum(key_rows * pulled[:, None], 0) * gradient_scale
        tl.store(own, for_all_queries, mask=lane < width)
    tl.store(own + 2 * stride, tl.sum(for_value_rows, 0), mask=lane < width)


@triton.jit(do_not_specialize=["seen_words", "seen_rows", "kept_words", "rows", "blocks"])  # type: ignore[untyped-decorator]
def _queries_backward(
    queries: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    answers: tl.tensor,
    above: tl.tensor,
    levels: tl.tensor,
    for_queries: tl.tensor,
    for_keys: tl.tensor,
    for_values: tl.tensor,
    sums: tl.tensor,
    query_offsets: tl.tensor,
    key_offsets: tl.tensor,
    seen: tl.tensor,
    seen_words: tl.tensor,
    seen_rows: tl.tensor,
    kept: tl.tensor,
    kept_words: tl.tensor,
    rows: tl.tensor,
    heads: tl.tensor,
    blocks: tl.tensor,
    query_stride: tl.tensor,
    query_head: tl.tensor,
    key_stride: tl.tensor,
    key_head: tl.tensor,
    value_stride: tl.tensor,
    value_head: tl.tensor,
    for_query_stride: tl.tensor,
    for_query_head: tl.tensor,
    for_key_stride: tl.tensor,
    for_key_head: tl.tensor,
    for_value_stride: tl.tensor,
    for_value_head: tl.tensor,
    scale: tl.tensor,
    gradient_scale: tl.tensor,
    kept_scale: tl.tensor,
    least: tl.constexpr,
    causal: tl.constexpr,
    width: tl.constexpr,
    lanes: tl.constexpr,
    row_tile: tl.constexpr,
    key_tile: tl.constexpr,
    stages: tl.constexpr,
) -> None:
    """Gradients of a block of queries, of texts whose keys are several blocks."""
    text, head = tl.program_id(0) // heads, tl.program_id(0) % heads
    key_begin = tl.load(key_offsets + text)
    key_count = tl.load(key_offsets + text + 1) - key_begin
    begin = tl.load(query_offsets + text)
    count = tl.load(query_offsets + text + 1) - begin
    first_row = tl.program_id(1) * row_tile
    if (key_count <= least) | (first_row >= count):
        return
    row = first_row + tl.arange(0, row_tile)
    row_known = row < count
    stride = heads * width
    own_queries = _head(queries, begin, query_stride, head, query_head)
    own_keys = _head(keys, key_begin, key_stride, head, key_head)
    own_values = _head(values, key_begin, value_stride, head, value_head)
    query_rows = _rows(own_queries, row, query_stride, row_known, width, lanes)
    upstream = _rows(_head(above, begin, stride, head, width), row, stride, row_known, width, lanes)
    own_answers = _head(answers, begin, stride, head, width)
    answer = _rows(own_answers, row, stride, row_known, width, lanes)
    own_levels = levels + head.to(tl.int64) * rows + begin
    level = tl.load(own_levels + row, mask=row_known, other=float("inf"))
    along = tl.sum(answer.to(tl.float32) * upstream.to(tl.float32), 1)
    for_query_rows = tl.zeros([row_tile, lanes], tl.float32)
    key = tl.arange(0, key_tile)
    end = key_count
    if causal:
        end = tl.minimum(end, first_row + row_tile)
    for first in tl.range(0, end, key_tile, num_stages=stages):
        column = first + key
        known = column < key_count
        key_rows = _rows(own_keys, column, key_stride, known, width, lanes)
        value_rows = _rows(own_values, column, value_stride, known, width, lanes)
        logits = tl.dot(query_rows, tl.trans(key_rows))
        allowed = known[None, :]
        if causal:
            allowed = allowed & (column[None, :] <= row[:, None])
        if seen is not None:
            own = seen + text.to(tl.int64) * seen_words * seen_rows
            allowed = allowed & _bits(own, seen_words, seen_rows, row, first, key_tile, 1)
        weights = tl.exp2(tl.where(allowed, logits, float("-inf")) * scale - level[:, None])
        for_weights = tl.dot(upstream, tl.trans(value_rows))
        if kept is not None:
            own = kept + head.to(tl.int64) * kept_words * rows + begin
            stays = _bits(own, kept_words, rows, row, first, key_tile, 1)
            for_weights *= tl.where(stays, kept_scale, 0.0)
        for_logits = (weights * (for_weights - along[:, None])).to(query_rows.dtype)
        for_query_rows = tl.dot(for_logits, key_rows, for_query_rows)
    for_query_rows *= gradient_scale
    target = _head(for_queries, begin, for_query_stride, head, for_query_head)
    _put(target, row, for_query_stride, row_known, for_query_rows, width, lanes)
    lane = tl.arange(0, lanes)
    own = sums + ((text * blocks + tl.program_id(1)).to(tl.int64) * 3 * heads + head) * width + lane
    tl.store(own, tl.sum(for_query_rows, 0), mask=lane < width)
