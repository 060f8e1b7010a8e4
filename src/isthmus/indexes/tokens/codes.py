"""Token vectors in few bits: what is stored of them, and how they are compared with a query.

Vectors lose the mean of the encoder's vectors, and are turned by a fixed random rotation, which
makes their numbers alike. Of each number only its level is kept, and of each vector the root mean
square of its numbers. Two bits are the levels that err least on normally distributed numbers
(Max, 1960); four are evenly spaced. In both a level is a weighted sum of its bits, so that bits can
be multiplied with a query as they are.
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
_LOWEST = {2: -1.510, 4: -2.7}
_OF_BITS = {2: (1.9628, 1.0572), 4: (2.88, 1.44, 0.72, 0.36)}
"""What the bits of a level add to the lowest one, the highest bit first; in root mean squares."""
_BOUND = 0.9816  # of two bits, between the levels of one sign
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
    planes = np.empty((_CACHED, bits, width), dtype=np.bool_)
    for first in range(0, len(vectors), _CACHED):
        part = slice(first, first + _CACHED)
        turned = (vectors[part] - centre) @ rotation(width)
        scale = np.sqrt(np.einsum("ij,ij->i", turned, turned) / width)
        scales[part] = scale
        turned /= np.maximum(scale, _TINY)[:, None]
        found = planes[: len(turned)]
        if bits == 2:
            np.greater(turned, 0, out=found[:, 0])
            np.equal(np.abs(turned) > _BOUND, found[:, 0], out=found[:, 1])
        else:
            levels = np.clip(turned * np.float32(1 / 0.36) + 8, 0, 15).astype(np.uint8)
            for place in range(bits):
                np.not_equal(levels & (1 << (bits - 1 - place)), 0, out=found[:, place])
        codes[part] = np.packbits(found.reshape(len(turned), -1), axis=1)
    return codes, scales


def asked(queries: Floats, centre: Floats, bits: int) -> tuple[Floats, Floats]:
    """What bits are multiplied with, a column per token of a query; and what is added to all.

    The product of a query's token with a stored vector is `bits @ columns * scale + added`, where
    the last row of the columns goes with a bit that is always set.
    """
    turned = queries @ rotation(queries.shape[1])
    columns = [np.float32(weight) * turned.T for weight in _OF_BITS[bits]]
    lowest = np.float32(_LOWEST[bits]) * turned.sum(1)
    return np.concatenate([*columns, lowest[None]]), queries @ centre


def products(
    codes: Codes, scales: npt.NDArray[np.float16], columns: Floats, added: Floats
) -> Floats:
    """The products of stored vectors with each token of a query, a row per vector."""
    bits = np.unpackbits(codes, axis=1, count=len(columns) - 1).astype(np.float32)
    found: Floats = bits @ columns[:-1]
    found += columns[-1]
    found *= scales.astype(np.float32)[:, None]
    found += added
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
