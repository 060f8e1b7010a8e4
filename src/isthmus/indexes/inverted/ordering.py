"""An order of documents in which neighbours resemble each other, so that bounds are tight."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

from isthmus.indexes.inverted import kernels
from isthmus.indexes.inverted.lists import CELL, Array

_TERMS = 16  # of a document; more change the order little
_ROUNDS = 12
_ROWS = 2**16


def similar_first(
    row_starts: npt.NDArray[np.int64], terms: Array, weights: Array, vocabulary: int, threads: int
) -> npt.NDArray[np.int64]:
    """All rows, similar ones near each other; the same whatever the number of threads."""
    rows = len(row_starts) - 1
    none = vocabulary
    strong = np.empty((rows, _TERMS), dtype=np.uint32)
    logs = np.log2(np.arange(1, rows + 2)).astype(np.float32)
    with ThreadPoolExecutor(threads) as pool:

        def fill(first: int) -> None:
            part = strong[first : first + _ROWS]
            kernels.strongest(row_starts, terms, weights, first, part, none)

        list(pool.map(fill, range(0, rows, _ROWS)))
        order = np.lexsort((strong[:, 1], strong[:, 0]))

        def counts() -> Array:
            return np.zeros((2, vocabulary + 1), dtype=np.int32)

        def halve(ends: tuple[int, int]) -> list[tuple[int, int]]:
            low, high = ends
            if high - low <= CELL:
                return []
            middle = kernels.halve(order, low, high, strong, counts(), logs, _ROUNDS)
            return [(low, middle), (middle, high)]

        ranges = [(0, rows)]
        while 0 < len(ranges) < 4 * threads:
            ranges = [half for halves in pool.map(halve, ranges) for half in halves]

        def halve_all(ends: tuple[int, int]) -> None:
            kernels.halve_all(order, *ends, strong, counts(), logs, _ROUNDS)

        list(pool.map(halve_all, ranges))
    return order
