"""The random visibility of enhanced decoding on a GPU, drawn and written in one pass.

A Triton kernel; nn/randomness.py chooses, and draws the same bits in plain torch, where every draw
passes through memory some 25 times.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from isthmus.nn.randomness import GOLDEN, MIX_1, MIX_2

_STEP, _FIRST, _SECOND = tl.constexpr(GOLDEN), tl.constexpr(MIX_1), tl.constexpr(MIX_2)
_FLIPPED = tl.constexpr(0x8000800080008000)  # orders 16-bit numbers with a sign like those without
_LANES = tl.constexpr(4)  # 16-bit numbers in a draw of 64 bits
_GROUPS, _COLUMNS, _WARPS = 8, 128, 4  # a program: draws for so many times four rows, columns


def draw_visibility(
    keys: Tensor, words: Tensor, attended: Tensor, stream: int, hidden: int
) -> Tensor:
    """True at [text, row, column] where the row sees the column; `hidden` is the rate of 2¹⁶."""
    texts, length = words.shape
    visible = torch.empty(texts, length, length, dtype=torch.bool, device=words.device)
    if visible.numel() == 0:
        return visible
    rows, columns = (-(-length // tile) for tile in (_GROUPS * _LANES.value, _COLUMNS))
    with torch.cuda.device(words.get_device()):
        _draw[texts, rows, columns](
            keys.contiguous(),
            words.contiguous(),
            attended.contiguous().view(torch.uint8),
            visible.view(torch.uint8),
            length,
            hidden,
            first=(stream << 32) + 1,
            groups=_GROUPS,
            width=_COLUMNS,
            num_warps=_WARPS,
        )
    return visible


@triton.jit  # type: ignore[untyped-decorator]
def _bits(keys: tl.tensor, place: tl.tensor) -> tl.tensor:
    """64 random bits of a key and a place in its stream: `draw_bits` of `randomness.py`."""
    value = keys + place * _STEP
    value = (value ^ (value >> 30)) * _FIRST
    value = (value ^ (value >> 27)) * _SECOND
    return value ^ (value >> 31)


@triton.jit(do_not_specialize=["hidden"])  # type: ignore[untyped-decorator]
def _draw(
    keys: tl.tensor,
    words: tl.tensor,
    attended: tl.tensor,
    visible: tl.tensor,
    length: tl.tensor,
    hidden: tl.tensor,
    first: tl.constexpr,
    groups: tl.constexpr,
    width: tl.constexpr,
) -> None:
    text = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1) * groups + tl.arange(0, groups)
    column = tl.program_id(2) * width + tl.arange(0, width)
    inside = column < length
    word = tl.load(words + text * length + column, mask=inside, other=0)
    known = tl.load(attended + text * length + column, mask=inside, other=0) != 0
    key = tl.load(keys + text).to(tl.uint64)
    word_keys = _bits(key, tl.maximum(word, 0).to(tl.uint64) + first)
    drawn = _bits(word_keys[None, :], group.to(tl.uint64)[:, None] + first) ^ _FLIPPED
    always = (word < 0)[None, :]
    for lane in tl.static_range(_LANES):
        row = (group * _LANES + lane)[:, None]
        shown = ((drawn >> (16 * lane)) & 0xFFFF).to(tl.int32) >= hidden
        shown = ((shown | always) & known[None, :] & (row != column[None, :])) | (column == 0)
        places = visible + text * length * length + row * length + column[None, :]
        tl.store(places, shown.to(tl.uint8), mask=(row < length) & inside[None, :])
