"""Token vectors in few bits: what is stored of them, and how they are compared with a query.

Vectors lose the mean of the encoder's vectors, and are turned by a fixed random rotation, which
makes their numbers alike. Of each number only its level is kept, and of each vector the root mean
square of its numbers. Levels are evenly spaced, at the distance that errs least on normally
distributed numbers (Max, 1960), so that they can be multiplied with a query as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from isthmus.indexes.manifest import TokensField
from isthmus.indexes.ragged import Places, Ragged, TokenVectors

Floats = npt.NDArray[np.float32]
Codes = npt.NDArray[np.uint8]
_SEED = 1
_STEP = {2: 0.9957, 4: 0.3352}
"""Between neighbouring levels, in root mean squares, by the number of bits."""
_EXACT = 1 << 24  # up to here, float32 adds whole numbers without rounding, in any order
_CACHED = 512  # vectors that are turned and packed while they are in the cache of a core
_TINY = np.finfo(np.float32).tiny


@dataclass(frozen=True)
class StoredTokens:
    """Token vectors of some texts as they are stored, and the word pieces of each."""

    codes: Codes
    scales: npt.NDArray[np.float16]
    starts: Places
    pieces: Ragged


def compressed(about: TokensField, vectors: TokenVectors) -> StoredTokens:
    """Token vectors as a field stores them."""
    given = vectors.vectors
    fewer = pooled(given, about.pooling) if about.pooling > 1 else given
    centre = np.array(about.centre, dtype=np.float32)
    codes, scales = encoded(fewer.values, centre, about.bits)
    return StoredTokens(codes, scales, fewer.starts, vectors.pieces)


def bytes_of(about: TokensField, vectors: TokenVectors) -> int:
    """The bytes that some texts take as they are stored."""
    fewer = int(np.sum(-(-np.diff(vectors.vectors.starts) // about.pooling)))
    stored = fewer * (code_bytes(about.dimension, about.bits) + 2)
    return stored + 4 * len(vectors.pieces.values) + 16 * len(vectors)


@cache
def rotation(width: int) -> Floats:
    """The orthogonal matrix that turns vectors of this width, the same everywhere."""
    random = np.random.default_rng(_SEED).standard_normal((width, width))
    turned, triangle = np.linalg.qr(random)
    return np.asarray(turned * np.sign(np.diag(triangle)), dtype=np.float32)


def code_bytes(width: int, bits: int) -> int:
    """The bytes of a vector's levels."""
    return -(-width * bits // 8)


def encoded(
    vectors: npt.NDArray[Any], centre: Floats, bits: int
) -> tuple[Codes, npt.NDArray[np.float16]]:
    """The levels of the numbers of each vector, a plane of all after another, and its scale."""
    width = vectors.shape[1]
    codes = np.empty((len(vectors), code_bytes(width, bits)), dtype=np.uint8)
    scales = np.empty(len(vectors), dtype=np.float16)
    for first in range(0, len(vectors), _CACHED):
        part = slice(first, first + _CACHED)
        turned = (vectors[part] - centre) @ rotation(width)
        scale = np.sqrt(np.einsum("ij,ij->i", turned, turned) / width)
        scales[part] = scale
        turned *= (1 / (np.float32(_STEP[bits]) * np.maximum(scale, _TINY)))[:, None]
        turned += 1 << (bits - 1)
        levels = np.clip(turned, 0, (1 << bits) - 1, out=turned).astype(np.uint8)
        codes[part] = _packed(levels, bits)
    return codes, scales


def _packed(levels: Codes, bits: int) -> Codes:
    """Levels in bytes, of which each holds some that are far apart, to be taken out together."""
    size = code_bytes(levels.shape[1], bits)
    packed = levels[:, :size].copy()
    for place in range(1, 8 // bits):
        further = levels[:, place * size : (place + 1) * size]
        packed[:, : further.shape[1]] |= further << (place * bits)
    return packed


def levels_of(codes: Codes, width: int, bits: int) -> Floats:
    """The levels of stored vectors, as they are multiplied."""
    found, size = np.empty((len(codes), width), dtype=np.uint8), codes.shape[1]
    for place in range(8 // bits):
        part = found[:, place * size : (place + 1) * size]
        np.right_shift(codes[:, : part.shape[1]], place * bits, out=part)
    found &= (1 << bits) - 1
    return found.astype(np.float32)


@dataclass(frozen=True)
class Asked:
    """The tokens of a query as stored vectors are multiplied with them, and their weights.

    Columns are whole numbers of a unit, so small that products with levels are exact: the score of
    a text does not depend on what else is compared with the query, or on the machine.
    """

    columns: Floats
    lowest: Floats
    units: Floats
    added: Floats
    weights: npt.NDArray[np.float64]

    @classmethod
    def of(cls, about: TokensField, tokens: Floats, weights: Floats) -> Asked:
        """Those of a query whose vectors are to meet those of a field."""
        columns = (tokens @ rotation(about.dimension)).T
        top = (1 << about.bits) - 1
        most = max(1, _EXACT // (top * about.dimension))
        units = np.maximum(np.abs(columns).max(axis=0), _TINY) / np.float32(most)
        columns = np.rint(columns / units)
        lowest = np.float32(top / 2) * columns.sum(axis=0)
        centre = np.array(about.centre, dtype=np.float32)
        return cls(
            np.ascontiguousarray(columns),
            lowest,
            np.float32(_STEP[about.bits]) * units,
            tokens @ centre,
            weights.astype(np.float64),
        )

    def products(self, levels: Floats, scales: npt.NDArray[np.float16]) -> Floats:
        """The product of each stored vector, a row, with each token of the query."""
        found: Floats = levels @ self.columns
        found -= self.lowest
        found *= scales.astype(np.float32)[:, None]
        found *= self.units
        found += self.added
        return found


def pooled(vectors: Ragged, every: int) -> Ragged:
    """The normalised means of so many neighbours each, the last of a text of those left."""
    lengths = np.diff(vectors.starts)
    fewer = -(-lengths // every)
    starts = np.zeros(len(vectors.starts), dtype=np.int64)
    np.cumsum(fewer, out=starts[1:])
    # A group begins `every` after the one before, unless a text begins there.
    places = np.arange(starts[-1]) - np.repeat(starts[:-1], fewer)
    begin: Places = np.repeat(vectors.starts[:-1], fewer) + places * every
    end = np.repeat(vectors.starts[1:], fewer)
    found = np.empty((len(begin), vectors.values.shape[1]), dtype=np.float32)
    for first in range(0, len(begin), _CACHED):
        part = slice(first, first + _CACHED)
        sums = vectors.values[begin[part]].astype(np.float32)
        for further in range(1, every):
            inside = begin[part] + further < end[part]
            sums[inside] += vectors.values[begin[part][inside] + further]
        norms = np.sqrt(np.einsum("ij,ij->i", sums, sums))
        found[part] = sums / np.maximum(norms, _TINY)[:, None]
    return Ragged(found, starts)
