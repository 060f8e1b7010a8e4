"""How two neighbouring spans lie to each other, whatever the document and the key."""

from __future__ import annotations

import itertools
from collections import Counter
from functools import cache

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from isthmus.nn.randomness import key
from isthmus.pretraining.views import Neighbours, NeighboursSettings, Text
from isthmus.text.corpus import TokenisedDocument
from isthmus.text.sentences import spans

KEYS = st.integers(-(2**63), 2**63 - 1)
SENTENCES = st.lists(st.integers(1, 9) | st.integers(1, 60), max_size=25)
ROOMS = st.integers(1, 24) | st.integers(1, 150)
STRATEGIES = ("near", "overlap", "random", "mixture")
Range = tuple[int, int]


def document(sizes: list[int]) -> TokenisedDocument:
    """Sentences of so many tokens; token i is 1000 + i and its word 2 · i, so places show."""
    starts = [0, *itertools.accumulate(sizes)]
    places = np.arange(starts.pop(), dtype=np.int32)
    return TokenisedDocument("d", places + 1000, places * 2, np.array(starts, np.int32))


def view(strategy: str, span: int = 128) -> Neighbours:
    return Neighbours(NeighboursSettings.model_validate({"strategy": strategy, "span": span}))


def place(text: Text) -> Range:
    """Where a text lies in a document made above; its tokens, words and start agree."""
    end = text.start + len(text.tokens)
    assert text.tokens.tolist() == list(range(1000 + text.start, 1000 + end))
    assert text.words.tolist() == list(range(2 * text.start, 2 * end, 2))
    return text.start, end


def pair(strategy: str, shown: TokenisedDocument, room: int, drawn: int) -> tuple[Range, Range]:
    """The two spans, the earlier one first."""
    one, two = sorted(place(text) for text in view(strategy)(shown, room, drawn))
    return one, two


@given(SENTENCES, ROOMS, KEYS, st.sampled_from(STRATEGIES), st.integers(3, 140))
def test_texts_are_parts_of_the_document_within_the_limit(
    sizes: list[int], room: int, drawn: int, strategy: str, span: int
) -> None:
    shown = document(sizes)
    texts = view(strategy, span)(shown, room, drawn)
    assert len(texts) == Neighbours.rows == 2
    limit = min(room, span - 2)
    for text in texts:
        start, end = place(text)
        assert 0 <= start <= end <= len(shown.tokens)
        assert end - start <= limit
        assert end > start or not sizes
    if sum(sizes) <= limit:
        assert [place(text) for text in texts] == [(0, sum(sizes))] * 2
    else:
        assert place(texts[0]) != place(texts[1])


def several(sizes: list[int], room: int) -> tuple[TokenisedDocument, list[Range]]:
    shown = document(sizes)
    found = spans(len(shown.tokens), shown.sentences, min(room, 126))
    assume(len(found) > 1)
    return shown, found


@given(SENTENCES, ROOMS, KEYS)
def test_near_spans_are_adjacent(sizes: list[int], room: int, drawn: int) -> None:
    shown, found = several(sizes, room)
    assert pair("near", shown, room, drawn) in list(itertools.pairwise(found))


@given(SENTENCES, ROOMS, KEYS)
def test_random_spans_are_two_different_ones(sizes: list[int], room: int, drawn: int) -> None:
    shown, found = several(sizes, room)
    assert pair("random", shown, room, drawn) in list(itertools.combinations(found, 2))


@given(SENTENCES, ROOMS, KEYS)
def test_overlapping_spans_share_a_part_and_neither_holds_the_other(
    sizes: list[int], room: int, drawn: int
) -> None:
    shown, found = several(sizes, room)
    (start, end), (begin, last) = pair("overlap", shown, room, drawn)
    assert (start, end) in found[:-1]
    assert start < begin <= end < last
    assert 2 * (end - begin) <= end - start
    if end - start == 1:
        assert begin == end, "a single token cannot be shared in part"
        return
    assert begin < end
    # The shared part is whole sentences wherever half of the first span can hold one.
    middle = end - (end - start) // 2
    starts = shown.sentences.tolist()
    inside = [sentence for sentence in starts if middle <= sentence < end]
    assert begin in inside or (begin == middle and not inside)
    # And the second ends with a sentence unless none of these beginnings can reach such an end.
    limit = min(room, 126)
    beyond = min(place for place in [*starts, len(shown.tokens)] if place > end)
    if any(beyond - sentence <= limit for sentence in inside or [middle]):
        assert last in starts or last == len(shown.tokens)
        following = [place for place in [*starts, len(shown.tokens)] if place > last]
        assert not following or following[0] - begin > limit, "another sentence would have fitted"
    else:
        assert last - begin == limit


@given(SENTENCES, ROOMS, KEYS, st.sampled_from(STRATEGIES))
def test_the_key_determines_the_draw(
    sizes: list[int], room: int, drawn: int, strategy: str
) -> None:
    shown = document(sizes)
    first, again = (view(strategy)(shown, room, drawn) for _ in range(2))
    assert [place(text) for text in first] == [place(text) for text in again]


LONG = document([7, 5, 8, 6, 4, 9, 3, 8, 7, 5] * 3)  # 186 tokens
KEY_COUNT = 6000


@cache
def drawn_pairs(strategy: str, room: int = 20) -> list[tuple[Range, Range]]:
    """What that many epochs draw, in the order in which it is shown."""
    chosen = view(strategy)
    pairs = (chosen(LONG, room, key(1, epoch, 5)) for epoch in range(KEY_COUNT))
    return [(place(one), place(two)) for one, two in pairs]


def chi_square(counts: Counter[object], kinds: int) -> float:
    assert len(counts) == kinds
    expected = sum(counts.values()) / kinds
    return sum((count - expected) ** 2 / expected for count in counts.values())


def test_the_mixture_draws_the_three_alike() -> None:
    mixed = drawn_pairs("mixture")
    each = {name: drawn_pairs(name) for name in ("near", "overlap", "random")}
    # A strategy draws alike on its own and in the mixture, so a pair tells where it comes from;
    # where near and random agree by chance, it counts for neither.
    counts: Counter[object] = Counter()
    for epoch, one in enumerate(mixed):
        names = [name for name, pairs in each.items() if pairs[epoch] == one]
        assert names
        if len(names) == 1:
            counts[names[0]] += 1
    assert sum(counts.values()) > 0.9 * KEY_COUNT
    assert chi_square(counts, 3) < 25, "2 degrees of freedom: 25 is beyond one in 100,000"


@pytest.mark.parametrize("strategy", ["near", "overlap", "random"])
def test_every_span_and_both_orders_are_drawn_alike(strategy: str) -> None:
    parts = len(spans(186, LONG.sentences, 20))
    pairs = drawn_pairs(strategy)
    if strategy == "random":
        kinds = parts * (parts - 1)
        counts: Counter[object] = Counter(pairs)
    else:
        kinds = 2 * (parts - 1)
        counts = Counter((min(pair)[0], pair[0] < pair[1]) for pair in pairs)
    # Six standard deviations above the mean of the distribution.
    assert chi_square(counts, kinds) < kinds + 6 * (2 * kinds) ** 0.5


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([5, 3, 2, 3], {(5, 13), (8, 13)}),  # both sentences of the second half can begin it
        ([5, 3, 2, 7], {(8, 17)}),  # only from 8 is there room for the next sentence
        ([5, 3, 2, 9], {(5, 15), (8, 18)}),  # from neither: it is cut
        ([3, 7, 2], {(5, 12)}),  # no sentence begins in the second half
        ([25], {(5, 15), (15, 25)}),
    ],
)
def test_where_overlapping_spans_begin_and_end(sizes: list[int], expected: set[Range]) -> None:
    found = {pair("overlap", document(sizes), 10, key(0, epoch, 0))[1] for epoch in range(60)}
    assert found == expected


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("sizes", [[], [1], [3, 4], [126]])
def test_one_span_is_shown_twice(strategy: str, sizes: list[int]) -> None:
    one, two = view(strategy)(document(sizes), 500, 7)
    assert place(one) == place(two) == (0, sum(sizes))
