"""Spans tile a document, keep to the limit, and cut a sentence only where they must."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.text.sentences import spans

SENTENCES = st.lists(st.integers(1, 9) | st.integers(1, 60), max_size=25)
LIMITS = st.integers(1, 20) | st.integers(1, 200)


def cut(sizes: list[int], limit: int) -> tuple[int, list[int], list[tuple[int, int]]]:
    """The length, the sentence starts and the spans of a document of such sentences."""
    starts = [0, *itertools.accumulate(sizes)]
    length = starts.pop()
    return length, starts, spans(length, np.array(starts, np.int32), limit)


@given(SENTENCES, LIMITS)
def test_spans_tile_the_document_within_the_limit(sizes: list[int], limit: int) -> None:
    length, _, found = cut(sizes, limit)
    assert [place for start, end in found for place in range(start, end)] == list(range(length))
    assert all(0 < end - start <= limit for start, end in found)


@given(SENTENCES, LIMITS)
def test_a_sentence_is_cut_only_where_it_is_longer_than_the_limit(
    sizes: list[int], limit: int
) -> None:
    length, starts, found = cut(sizes, limit)
    size_from = dict(zip(starts, sizes, strict=True))
    for start, end in found:
        if end == length or end in starts:
            continue
        # The span ends inside a sentence: it holds nothing else, and the sentence did not fit.
        assert end - start == limit
        begin = max(place for place in starts if place < end)
        assert begin <= start
        assert size_from[begin] > limit


@given(SENTENCES, LIMITS)
def test_spans_take_every_sentence_that_fits(sizes: list[int], limit: int) -> None:
    length, starts, found = cut(sizes, limit)
    ends = [*starts[1:], length]
    for start, end in found[:-1]:
        following = min(place for place in ends if place > end)
        assert following - start > limit, "the next sentence would have fitted"


@pytest.mark.parametrize(
    ("sizes", "limit", "expected"),
    [
        ([], 5, []),
        ([1], 1, [(0, 1)]),
        ([5], 5, [(0, 5)]),
        ([2, 3, 1], 5, [(0, 5), (5, 6)]),
        ([2, 4, 1], 5, [(0, 2), (2, 7)]),
        ([2, 12, 2, 4], 5, [(0, 2), (2, 7), (7, 12), (12, 16), (16, 20)]),
        ([3, 3], 1, [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 6)]),
    ],
)
def test_examples(sizes: list[int], limit: int, expected: list[tuple[int, int]]) -> None:
    assert cut(sizes, limit)[2] == expected
