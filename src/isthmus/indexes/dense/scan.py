"""Which vectors of a block may be among the best: found with rounded products and their bounds.

A scan errs on one side only: whatever it leaves out cannot be among the best, and what it lets
through is scored exactly afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]
_QUERIES_AT_ONCE = 128
_LEAST = float(np.finfo(np.float32).min)


class BlasScan:
    """Float32 products of a whole block with many queries."""

    def __init__(
        self,
        vectors: npt.NDArray[np.floating[Any]],
        queries: Floats,
        largest_norm: float,
        mask: npt.NDArray[np.bool_] | None = None,
    ) -> None:
        """Rows outside the mask are left out."""
        self._vectors = vectors
        self._queries = queries
        # Added to products, it leaves those of other rows below all.
        self._bias = None if mask is None else np.where(mask, 0, -np.inf).astype(np.float32)
        self._margins = float32_margins(queries, largest_norm)

    def __call__(self, first: int, count: int, depth: int, floors: Doubles) -> Iterator[Rows]:
        """Rows among first, first + 1, … that may be among the `depth` best, query after query.

        Their product lies above the cut less what rounding may have taken. `floors` are the exact
        scores a document must reach to enter at all.
        """
        block = np.ascontiguousarray(self._vectors[first : first + count], dtype=np.float32)
        for number, (floor, margin) in enumerate(zip(floors, self._margins, strict=True)):
            place = number % _QUERIES_AT_ONCE
            if place == 0:
                products = self._queries[number : number + _QUERIES_AT_ONCE] @ block.T
                if self._bias is not None:
                    products += self._bias[first : first + count]
            cut = floor - margin
            if np.isinf(floor) and len(block) > depth:
                # `depth` documents exceed this product less one error: nothing below it less two.
                cut = _highest(products[place], depth) - 2 * margin
            # Nothing outside the mask, not even where there is less than `depth` in it.
            yield np.flatnonzero(products[place] >= max(cut, _LEAST)) + first


def float32_margins(queries: Floats, largest_norm: float) -> Doubles:
    """How far a float32 product can lie from the exact one, per query.

    n*u*|q|*|d| bounds the rounding of a sum of n products in any order (Higham, Accuracy and
    Stability, section 3.1); the smallest normal number covers products that underflow.
    """
    lengths = np.linalg.norm(queries.astype(np.float64), axis=1)
    unit, tiny = float(np.finfo(np.float32).eps), float(np.finfo(np.float32).tiny)
    margins: Doubles = queries.shape[1] * (unit * lengths * largest_norm + tiny)
    return margins


def _highest(values: npt.NDArray[np.floating[Any]], place: int) -> float:
    return float(np.partition(values, len(values) - place)[len(values) - place])
