"""Which words answered a query, where tokens were compared, and what a snippet shows of them."""

from __future__ import annotations

import re
from types import SimpleNamespace

import numpy as np

from isthmus.retrieval.matches import Matched, Read
from isthmus.retrieval.snippets import snippets

QUERY = "the price of a car"
TEXT = f"{'filler ' * 60}of an automobile, {'filler ' * 30}a price.{' filler' * 60}"
PIECES = r"auto|mobile|\w+|\S"


def read(text: str, shown: str) -> Read:
    """A text of which every piece has a vector, and what is shown of it."""
    pieces = list(re.finditer(PIECES, text))
    ids = np.array([hash(one[0]) for one in pieces])
    spans = np.array([one.span() for one in pieces])
    return Read.of(text, (ids, spans), len(text) - len(shown), SimpleNamespace(tokenizer=None))


def matched(alike: dict[str, dict[str, float]], pooling: int) -> Matched:
    """The query and the text, in which these pieces are so near to words of the query."""
    query, text = read(QUERY, QUERY), read(f"Cars\n{TEXT}", TEXT)
    near = np.full((len(text.ids), len(query.ids)), 0.1, dtype=np.float32)
    for column, word in enumerate(re.findall(PIECES, QUERY)):
        for row, piece in enumerate(re.findall(PIECES, text.text)):
            near[row, column] = alike.get(word, {}).get(piece, 0.1)
    pooled = np.stack(
        [near[first : first + pooling].max(0) for first in range(0, len(near), pooling)]
    )
    weights = np.array([0.05, 0.3, 0.05, 0.05, 0.55], dtype=np.float64)

    def rarity(ids: np.ndarray) -> np.ndarray:
        common = [hash(word) for word in ("of", "an", "a", ",", "filler")]
        return np.where(np.isin(ids, common), 0.5, 4).astype(np.float32)

    return Matched(query, text, weights, pooled, pooling, rarity)


def test_a_snippet_is_around_what_answers_and_highlights_it_though_no_word_of_the_query() -> None:
    alike = {"car": {"mobile": 0.7, "Cars": 0.6}, "price": {"price": 0.9}, "of": {"filler": 0.9}}
    for pooling in (1, 2, 3):
        (found,) = snippets([TEXT], QUERY, [matched(alike, pooling)])
        assert "of an automobile, filler" in found.text
        assert found.text.startswith("… filler")
        assert [part for part, answers in found.parts if answers] == ["automobile"]


def test_matches_are_whole_words_with_their_places() -> None:
    alike = {"car": {"mobile": 0.7, "Cars": 0.6}, "price": {"price": 0.9}}
    found = {one.word: one for one in matched(alike, 1).matches()}
    (answer,) = found["car"].answers
    assert answer.text == TEXT[answer.start : answer.end] == "automobile"
    assert found["car"].contribution == 0.55 * np.float64(np.float32(0.7))
    alike["car"]["Cars"] = 0.8
    (answer,) = {one.word: one for one in matched(alike, 2).matches()}["car"].answers
    assert (answer.text, answer.start) == ("Cars", None), "of the title: not in what is shown"


def test_what_is_hardly_nearer_than_other_words_is_not_highlighted() -> None:
    (found,) = snippets([TEXT], QUERY, [matched({"car": {"mobile": 0.2}}, 2)])
    assert "automobile" in found.text
    assert not found.highlights
