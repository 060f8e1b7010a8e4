"""Where sentences begin, by example."""

from __future__ import annotations

import itertools

import pytest

from isthmus.text.sentences import sentence_starts


@pytest.mark.parametrize(
    "sentences",
    [
        ["One. ", "Two! ", "Three? ", "Four."],
        ["Dr. Smith met Mr. J. R. Jones, e.g. in No. 5. ", "They spoke."],
        ["It cost 3.14 dollars. ", "Cheap."],
        ["See fig. 3 and al. for more. ", "End."],
        ["He left (at last.) ", '"Why?" ', "she asked."],
        ["A heading\n\n", "A paragraph that goes on\nover two lines. ", "Then another."],
        ["the value of x. is not a sentence end when what follows is small"],
        ["Really?! ", "Yes... ", "Well."],
        ["Ende. ", "Über alles. ", "Ça va."],
        ["No full stop at the end of it"],
    ],
)
def test_examples(sentences: list[str]) -> None:
    text = "".join(sentences)
    starts = sentence_starts(text)
    assert [text[a:b] for a, b in itertools.pairwise([*starts, len(text)])] == sentences


def test_long_texts_take_linear_time() -> None:
    # Quadratic time would not come to an end here.
    assert len(sentence_starts("One two. " * 100_000)) == 100_000
    assert sentence_starts("." * 100_000 + "\n" * 100_000 + ".") == [0, 200_000]
