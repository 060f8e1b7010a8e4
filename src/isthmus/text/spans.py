"""A document cut into spans: groups of whole sentences that fit into a limit."""

from __future__ import annotations

from bisect import bisect_right

import numpy as np
import numpy.typing as npt

Span = tuple[int, int]


def spans(length: int, sentences: npt.NDArray[np.integer], limit: int) -> list[Span]:
    """The (start, end) of consecutive spans that tile a document, none longer than `limit`.

    Each takes as many whole sentences as fit. A sentence that is longer than the limit is cut;
    what is left of it shares a span with the sentences that follow.
    """
    assert limit > 0, limit
    boundaries = [0, *sentences.tolist(), length]
    found = []
    start = 0
    while start < length:
        end = span_end(boundaries, start, limit)
        found.append((start, end))
        start = end
    return found


def span_end(boundaries: list[int], start: int, limit: int) -> int:
    """The last boundary that a span from `start` can reach, or the limit where it reaches none."""
    reached = boundaries[bisect_right(boundaries, start + limit) - 1]
    return reached if reached > start else start + limit
