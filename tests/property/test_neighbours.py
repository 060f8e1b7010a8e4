"""How two neighbouring spans lie to each other, whatever the document and the key."""

from __future__ import annotations

import itertools
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from isthmus.collections import open_corpus
from isthmus.nn.randomness import key
from isthmus.pretraining.parts import Text
from isthmus.pretraining.views.neighbours import Neighbours, NeighboursSettings
from isthmus.records import Document
from isthmus.text.corpus import TokenisedCorpus, TokenisedDocument, tokenise
from isthmus.text.new_tokenizer import new_tokenizer
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


def test_a_mixture_of_two_draws_them_by_their_weights() -> None:
    settings = NeighboursSettings.model_validate({"weights": {"overlap": 3.0, "near": 1.0}})
    mixed, count = Neighbours(settings), 2000
    each = {name: view(name) for name in ("near", "overlap")}
    counts: Counter[str] = Counter()
    for epoch in range(count):
        drawn = key(1, epoch, 5)
        shown = [place(text) for text in mixed(LONG, 20, drawn)]
        (name,) = [
            name for name, one in each.items() if [place(t) for t in one(LONG, 20, drawn)] == shown
        ]
        counts[name] += 1
    # Six standard deviations of a coin that falls on near once in four times.
    assert abs(counts["near"] - count / 4) < 6 * (count * 3 / 16) ** 0.5
    alike = NeighboursSettings.model_validate({"weights": {"random": 0.5, "near": 0, "overlap": 0}})
    drawn = key(1, 0, 5)
    assert Neighbours(alike)(LONG, 20, drawn)[0].start == view("random")(LONG, 20, drawn)[0].start


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"weights": {"near": 0.0}}, "needs a weight above 0"),
        ({"weights": {}}, "needs a weight above 0"),
        ({"weights": {"near": -1.0, "overlap": 2.0}}, "greater than or equal to 0"),
        ({"weights": {"far": 1.0}}, "near"),
        ({"strategy": "near", "weights": {"near": 1.0}}, "strategy=mixture"),
    ],
)
def test_weights_that_mean_nothing_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        NeighboursSettings.model_validate(values)


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


def test_where_to_cut_does_not_depend_on_the_strategy_drawn() -> None:
    parts = len(spans(186, LONG.sentences, 20))
    assert (parts - 1) % 3 == 0, "or one number could serve both draws unnoticed"
    pairs = [(min(pair), max(pair)) for pair in drawn_pairs("mixture")]
    # Adjacent pairs are near, and few of them random; those that share a part are all overlap.
    for firsts in ([a for a, b in pairs if a[1] == b[0]], [a for a, b in pairs if a[1] > b[0]]):
        assert chi_square(Counter(firsts), parts - 1) < parts + 6 * (2 * parts) ** 0.5


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


def test_a_span_has_at_most_128_tokens_with_special_ones() -> None:
    one, two = view("near")(document([10] * 24), 510, 3)
    assert len(one.tokens) == len(two.tokens) == 120
    one, two = view("near")(document([252]), 510, 3)
    assert len(one.tokens) == len(two.tokens) == 126


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> TokenisedCorpus:
    tokenizer = new_tokenizer(["the cat sat ."], 30)
    texts = ["", "the cat", "the cat sat. " * 31 + "the cat", "the cat sat. " * 40]
    documents = [Document(str(number), text) for number, text in enumerate(texts)]
    folder = tmp_path_factory.mktemp("corpus")
    return tokenise(documents, "s", tokenizer.serialised, cache=folder)


def test_the_survey_counts_documents_of_one_span(corpus: TokenisedCorpus) -> None:
    assert corpus.lengths.tolist() == [0, 2, 126, 160]
    told = "documents {} one span only: both sides see the same text"
    some = f"2 of 4 {told.format('have')}"
    assert view("mixture").survey(corpus, 125) == some
    assert view("mixture", span=127).survey(corpus, 510) == some
    assert view("mixture", span=3).survey(corpus, 510) == f"1 of 4 {told.format('has')}"
    most = f"3 of 4 {told.format('have')}; a smaller view.span gives more pairs"
    assert view("mixture").survey(corpus, 510) == most


def test_the_survey_is_silent_where_all_have_neighbours(
    corpus: TokenisedCorpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus, "lengths", np.array([127, 500], np.int32))
    assert view("near").survey(corpus, 510) == ""


def test_lengths_for_batching_are_those_of_full_spans() -> None:
    lengths = np.array([0, 100, 126, 127, 5000])
    assert view("near").length(lengths, 510).tolist() == [0, 100, 126, 126, 126]
    assert view("near").length(lengths, 50).tolist() == [0, 50, 50, 50, 50]


def test_real_sections(shared_data: Path, tmp_path: Path) -> None:
    source = open_corpus(str(shared_data / "texts" / "openstax.jsonl.zst"))
    sections = list(itertools.islice(source.documents(), 60))
    tokenizer = new_tokenizer([section.contents() for section in sections[:20]], 2000)
    found = tokenise(sections, "openstax", tokenizer.serialised, cache=tmp_path)
    drawn = view("mixture")
    shared = distinct = 0
    for row, section in enumerate(found):
        pairs = [drawn(section, 510, key(0, epoch, row)) for epoch in range(8)]
        for text in itertools.chain.from_iterable(pairs):
            end = text.start + len(text.tokens)
            assert len(text.tokens) <= 126
            assert np.array_equal(text.tokens, section.tokens[text.start : end])
            assert np.array_equal(text.words, section.words[text.start : end])
        distinct += len({(one.start, two.start) for one, two in pairs})
        shared += sum(
            one.start < two.start + len(two.tokens) and two.start < one.start + len(one.tokens)
            for one, two in pairs
        )
    assert distinct > 6 * len(found), "pairs change with the epoch"
    assert 0.2 < shared / (8 * len(found)) < 0.47
