"""Cells: what is done at once is what a loop would do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import pytest

from isthmus.indexes.inverted.cells import add_at_once, add_one_by_one, highest
from isthmus.indexes.inverted.lists import CELL

MASKS = [0, 1, 1 << 31, 0xFFFFFFFF, 0xDEADBEEF, 0x80000001]
KINDS = [("u1", "i4"), ("u2", "i4"), ("u1", "i8"), ("u2", "i8"), ("f4", "f8")]


@pytest.mark.parametrize("add", [add_at_once, add_one_by_one])
@pytest.mark.parametrize(("weights", "scores"), KINDS)
def test_weights_go_to_the_documents_of_the_mask(
    add: Callable[..., None], weights: str, scores: str
) -> None:
    generator = np.random.default_rng(0)
    largest = 1 if weights == "f4" else np.iinfo(weights).max
    for mask in MASKS:
        held = np.flatnonzero([mask >> bit & 1 for bit in range(CELL)])
        stored = (generator.random(len(held) + 3) * largest).astype(weights)
        before = (generator.random(3 * CELL) * 1000).astype(scores)
        factor = before.dtype.type(7)
        found, expected = before.copy(), before.copy()
        add(found, CELL, stored, 3, np.uint32(mask), factor)
        expected[CELL + held] += factor * stored[3:].astype(scores)
        np.testing.assert_array_equal(found, expected)


def test_nothing_is_read_behind_the_last_weight() -> None:
    add_at_once(np.zeros(CELL, np.int32), 0, np.empty(0, np.uint8), 0, np.uint32(0), np.int32(1))


@pytest.mark.parametrize("kind", ["i4", "i8", "f8"])
def test_the_highest_of_a_cell(kind: str) -> None:
    @numba.njit
    def of(scores: Any, first: int) -> Any:
        return highest(scores, first)

    scores = np.random.default_rng(1).permutation(4 * CELL).astype(kind) - 70
    for first in (0, CELL, 2 * CELL):
        found = of(scores, first)
        assert found == scores[first : first + CELL].max()
        assert found.__class__ in (int, float)
