"""Inner products of small integers, compiled."""

from __future__ import annotations

from typing import Any

import numpy as np

from isthmus.indexes.jit import compiled


@compiled
def inner_products(codes: Any, queries: Any, found: Any) -> None:
    """Fills a row per query and a column per code; sums must fit 32 bits."""
    rows, dimensions = codes.shape
    for row in range(rows):
        for number in range(len(queries)):  # while the code is near
            total = np.int32(0)
            for place in range(dimensions):
                product = np.int32(codes[row, place]) * np.int32(queries[number, place])
                # Cast back: numba would add in 64 bits, half as many at a time.
                total = np.int32(total + np.int32(product))
            found[number, row] = total
