"""What the tests of all cells of a benchmark share."""

from __future__ import annotations

from isthmus.benchmarks.runner.testing import _Remembering
from isthmus.text.new_tokenizer import new_tokenizer

TEXTS = ["the cat sat", "", "the cat sat", "a dog ate the cat that sat there, über all"]


def test_a_text_that_is_remembered_is_read_as_before() -> None:
    plain = new_tokenizer(TEXTS, 80)
    for texts in (TEXTS, [TEXTS[-1], "the dog"]):
        remembering = _Remembering(plain.pretrained)
        assert remembering.encode(texts, 8) == plain.encode(texts, 8)
        assert [*map(len, remembering.split(texts))] == [*map(len, plain.split(texts))]
