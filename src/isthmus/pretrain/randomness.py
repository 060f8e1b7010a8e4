"""Randomness without state: a number for every (seed, epoch, document, stream, position).

A counter-based generator (the finaliser of SplitMix64, Steele et al. 2014) in integer tensor
operations. A resumed run, another batch size, another number of processes or a GPU draw exactly
the same masks, because nothing depends on what was drawn before.
"""

from __future__ import annotations

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
    positions = torch.arange(1, width + 1, device=keys.device, dtype=torch.int64)
    counters = keys[:, None] + (positions + (stream << 32)) * _signed(_GOLDEN)
    counters = (counters ^ _shift(counters, 30)) * _signed(_MIX_1)
    counters = (counters ^ _shift(counters, 27)) * _signed(_MIX_2)
    return counters ^ _shift(counters, 31)


def draw(keys: Tensor, stream: int, width: int) -> Tensor:
    """Uniform 63-bit integers [batch, width]."""
    return _shift(draw_bits(keys, stream, width), 1)


def uniform(keys: Tensor, stream: int, width: int) -> Tensor:
    """Uniform float32 numbers in [0, 1), with 24 random bits each."""
    return (draw(keys, stream, width) >> 39).to(torch.float32) * 2.0**-24


def normal(keys: Tensor, stream: int, width: int) -> Tensor:
    """Standard normal float32 numbers, by the inverse of the distribution function.

    Its last bit may differ between devices, as every function of floats may.
    """
    # The middles of 2^23 equal parts: exact in float32, and neither 0 nor 1, which are infinite.
    middles = ((draw(keys, stream, width) >> 40).to(torch.float32) + 0.5) * 2.0**-23
    numbers: Tensor = torch.special.ndtri(middles)
    return numbers


def integer_below(keys: Tensor, stream: int, width: int, limit: int) -> Tensor:
    """Uniform integers in [0, limit)."""
    return draw(keys, stream, width) % limit


def _shift(values: Tensor, bits: int) -> Tensor:
    # torch shifts int64 arithmetically; masking the sign's copies makes it a logical shift.
    return (values >> bits) & ((1 << (64 - bits)) - 1)


def _mix_integer(value: int) -> int:
    value = (value ^ (value >> 30)) * _MIX_1 & _MASK
    value = (value ^ (value >> 27)) * _MIX_2 & _MASK
    return value ^ (value >> 31)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value
