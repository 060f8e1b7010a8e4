"""Vectors in eight bits, beside the vectors themselves: small enough to be scanned from memory."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from isthmus.indexes.arrays import GrowingArray, mapped
from isthmus.indexes.cores import usable_cores

CODES, SIZES = "codes.npy", "code_sizes.npy"
_LARGEST = 127
_LARGEST_OF_QUERY = 2**12 - 1  # so that sums of products fit 32 bits up to 4,128 dimensions
_ROWS = 2**14


class Codes(NamedTuple):
    """Integers of eight bits per vector; `sizes` are rows of steps, errors and norms.

    The vector is its integers times its step, off by a difference whose norm is the error.
    """

    values: npt.NDArray[np.int8]
    sizes: npt.NDArray[np.float64]

    @classmethod
    def open(cls, folder: Path) -> Codes:
        """The codes in the folder of an index, memory-mapped."""
        return cls(mapped(folder / CODES, folder), mapped(folder / SIZES, folder).T)


def write_codes(vectors: npt.NDArray[np.floating[Any]], folder: Path) -> None:
    """Writes the codes of all vectors into a folder."""
    with (
        GrowingArray(folder / CODES, np.int8, vectors.shape[1]) as values,
        GrowingArray(folder / SIZES, np.float64, 3) as sizes,
    ):
        for start in range(0, len(vectors), _ROWS):
            block = vectors[start : start + _ROWS].astype(np.float64)
            steps = np.abs(block).max(axis=1, initial=0) / _LARGEST
            codes = _nearest(block, steps)
            decoded = codes * steps[:, None]
            errors, norms = (np.linalg.norm(x, axis=1) for x in (block - decoded, decoded))
            values.append(codes.astype(np.int8))
            sizes.append(np.stack([steps, errors, norms], axis=1))


def rounded(
    queries: npt.NDArray[np.float32],
) -> tuple[npt.NDArray[np.int16], npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Queries as integers, what one of them stands for, and the norm of what rounding took."""
    exact = queries.astype(np.float64)
    largest = min(_LARGEST_OF_QUERY, (2**31 - 1) // (_LARGEST * max(1, queries.shape[1])))
    assert largest, "so many dimensions need wider sums"
    steps = np.abs(exact).max(axis=1, initial=0) / largest
    whole = _nearest(exact, steps)
    return whole.astype(np.int16), steps, np.linalg.norm(exact - whole * steps[:, None], axis=1)


def products(codes: npt.NDArray[np.int8], queries: npt.NDArray[np.int16]) -> npt.NDArray[np.int32]:
    """The inner product of every query with every code, exactly, a row per query, on all cores."""
    from isthmus.indexes.dense.products import inner_products  # brings numba

    found = np.empty((len(queries), len(codes)), dtype=np.int32)
    cores = min(usable_cores(), max(1, len(codes) // _ROWS))
    cuts = np.linspace(0, len(codes), cores + 1).astype(int)

    def compute(part: int) -> None:
        rows = slice(cuts[part], cuts[part + 1])
        inner_products(codes[rows], queries, found[:, rows])

    if cores == 1:
        compute(0)
    else:
        with ThreadPoolExecutor(cores) as pool:
            list(pool.map(compute, range(cores)))
    return found


def _nearest(
    vectors: npt.NDArray[np.float64], steps: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    # Steps of zero, of a vector of zeros or of numbers too small to divide, give zeros.
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        codes = np.rint(vectors / steps[:, None])
    return np.where(np.isfinite(codes), codes, 0)
