"""Randomness without state: a number for every (seed, epoch, document, stream, position).

A counter-based generator (the finaliser of SplitMix64, Steele et al. 2014) in integer tensor
operations. A resumed run, another batch size, another number of processes or a GPU draw exactly
the same masks, because nothing depends on what was drawn before.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB
_MASK = (1 << 64) - 1


def key(seed: int, epoch: int, document: int) -> int:
    """The key of one document in one epoch, as a signed 64-bit integer."""
    mixed = 0
    for part in (seed, epoch, document):
        mixed = _mix_integer((mixed + part + _GOLDEN) & _MASK)
    return _signed(mixed)


def second(drawn: int) -> int:
    """The key of a document's second text, from that of its first."""
    return _signed(_mix_integer((drawn + _GOLDEN) & _MASK))


def draw_bits(keys: Tensor, stream: int, width: int) -> Tensor:
    """64 random bits [batch, width] as signed integers; `stream` separates uses of one key."""
    return _fold_(_scrambled(keys, stream, width), 31)


def draw(keys: Tensor, stream: int, width: int) -> Tensor:
    """Uniform 63-bit integers [batch, width]: the bits without the last."""
    # What is shifted before it is folded has no sign: one operation less.
    bits = _shift(_scrambled(keys, stream, width), 1)
    return bits.bitwise_xor_(bits >> 31)


def draw_together(keys: Tensor, streams: Sequence[int], width: int) -> tuple[Tensor, ...]:
    """What `draw` gives for each stream, for little more than one of them costs to launch."""
    first = streams[0]
    shifted = [keys]
    shifted += [keys + _signed((other - first << 32) * _GOLDEN & _MASK) for other in streams[1:]]
    drawn = draw(torch.cat(shifted), first, width)
    return drawn.view(len(streams), len(keys), width).unbind()


def uniform(drawn: Tensor) -> Tensor:
    """Uniform float32 numbers in [0, 1) with 24 random bits each, of what `draw` gives."""
    return (drawn >> 39).to(torch.float32).mul_(2.0**-24)


def normal(drawn: Tensor) -> Tensor:
    """Standard normal float32 numbers of what `draw` gives, by the inverse distribution function.

    Its last bit may differ between devices, as every function of floats may.
    """
    # The middles of 2^23 equal parts: exact in float32, and neither 0 nor 1, which are infinite.
    middles = (drawn >> 40).to(torch.float32).add_(0.5).mul_(2.0**-23)
    numbers: Tensor = torch.special.ndtri(middles)
    return numbers


def _scrambled(keys: Tensor, stream: int, width: int) -> Tensor:
    """SplitMix64 but for its last fold."""
    # On a GPU, launching an operation costs more than the numbers: few of them, in place.
    positions = torch.arange(
        (stream << 32) + 1, (stream << 32) + width + 1, device=keys.device, dtype=torch.int64
    )
    counters = torch.add(keys[:, None], positions, alpha=_signed(_GOLDEN))
    for bits, factor in ((30, _MIX_1), (27, _MIX_2)):
        _fold_(counters, bits).mul_(_signed(factor))
    return counters


def _fold_(values: Tensor, bits: int) -> Tensor:
    return values.bitwise_xor_(_shift(values, bits))


def _shift(values: Tensor, bits: int) -> Tensor:
    # torch shifts int64 arithmetically; masking the sign's copies makes it a logical shift.
    return (values >> bits).bitwise_and_((1 << (64 - bits)) - 1)


def _mix_integer(value: int) -> int:
    value = (value ^ (value >> 30)) * _MIX_1 & _MASK
    value = (value ^ (value >> 27)) * _MIX_2 & _MASK
    return value ^ (value >> 31)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


_LANES = 4  # 16-bit numbers in a draw of 64 bits


def draw_visibility(
    keys: Tensor, words: Tensor, attended: Tensor, stream: int, hidden: int
) -> Tensor:
    """True at [text, row, column] where the row sees the column.

    A row sees column 0, never its own, and every other attended column unless the column's word is
    hidden from it, with a chance of `hidden` in 2¹⁶. A column without a word (-1) is never hidden.
    """
    texts, length = words.shape
    lanes = -(-length // _LANES)
    # For every word, 16 random bits for every row that might see it: four numbers from one draw.
    # A key for each word first: what a row sees must not depend on how far its batch is padded.
    word_keys = draw_bits(keys, stream, length).gather(1, words.clamp(min=0)).flatten()
    drawn = draw_bits(word_keys, stream, lanes).view(torch.int16)
    visible = drawn.view(texts, length, lanes * _LANES)[:, :, :length] >= hidden - 2**15
    visible = visible.transpose(1, 2).contiguous()  # the layout that attention's kernels read
    visible |= (words < 0)[:, None]
    visible &= attended[:, None]
    visible.diagonal(dim1=1, dim2=2).fill_(False)
    visible[:, :, 0].fill_(True)
    return visible
