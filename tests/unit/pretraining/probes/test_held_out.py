"""Held-out documents: which they are, and their batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from isthmus.nn.sizes import new_backbone
from isthmus.pretraining.examples import PretrainExamples
from isthmus.pretraining.probes._held_out import HeldOut, prepare_held_out, split
from isthmus.pretraining.recipe import assemble
from isthmus.pretraining.settings import PretrainSettings, ProbeSettings
from isthmus.pretraining.task import PretrainTask
from isthmus.records import Document
from isthmus.text.corpus import TokenisedCorpus, tokenise
from isthmus.text.new_tokenizer import new_tokenizer

WORDS = "the quick brown fox jumps over the lazy dog ! ? ."
TOKENIZER = new_tokenizer([WORDS] * 2, 200)
BACKBONE = new_backbone("tiny", len(TOKENIZER), 0)
NUMBERS = ["quick", "brown", "fox", "jumps", "over", "the", "lazy", "dog", "again", "and"]
Corpora = Callable[[Sequence[str]], TokenisedCorpus]


def numbered(number: int) -> str:
    """A text of its own for every number, of three sentences."""
    digits = [NUMBERS[int(digit)] for digit in f"{number:05d}"]
    return f"The {' '.join(digits)}! Fox {' '.join(digits[::-1])}! Dog {' '.join(digits[1:])}"


@pytest.fixture
def corpus(tmp_path: Path) -> Corpora:
    def make(texts: Sequence[str]) -> TokenisedCorpus:
        documents = [Document(f"d{number}", text) for number, text in enumerate(texts)]
        return tokenise(documents, f"{hash(tuple(texts))}", TOKENIZER.serialised, cache=tmp_path)

    return make


@pytest.mark.parametrize(
    ("documents", "wanted", "expected"),
    [
        (399, 300, 0),  # a twentieth would be 19
        (400, 300, 20),
        (459, 300, 22),
        (1000, 30, 30),
        (1000, 19, 0),
        (1000, 0, 0),
    ],
)
def test_at_most_a_twentieth_and_none_below_twenty(
    corpus: Corpora, documents: int, wanted: int, expected: int
) -> None:
    texts = corpus([numbered(number) for number in range(documents)])
    rows, held_out = split(texts, ProbeSettings(documents=wanted), seed=3)
    assert len(held_out) == expected
    assert sorted([*rows, *held_out]) == list(range(documents)), "every row on one side"
    assert (np.diff(rows) > 0).all()
    assert (np.diff(held_out) > 0).all()


def test_copies_of_held_out_documents_are_in_neither_side(corpus: Corpora) -> None:
    # 500 documents, each twice, and one far too often.
    texts = corpus([numbered(number % 500) for number in range(1000)] + [numbered(7)] * 400)
    for seed in range(5):
        rows, held_out = split(texts, ProbeSettings(), seed)
        shown = {texts[row].tokens.tobytes() for row in rows}
        hidden = [texts[row].tokens.tobytes() for row in held_out]
        assert len(held_out) == 25, "a twentieth of the different documents"
        assert len(set(hidden)) == len(hidden)
        assert shown.isdisjoint(hidden)
        assert len(shown) == 475


def test_documents_without_two_tokens_are_not_held_out(corpus: Corpora) -> None:
    texts = corpus(["", "fox"] * 300 + [numbered(number) for number in range(400)])
    _, held_out = split(texts, ProbeSettings(), seed=0)
    assert len(held_out) == 20
    assert held_out.min() >= 600


def prepare(documents: list[Document], tmp_path: Path, **change: Any) -> HeldOut:
    """What is made of all documents but the first two."""
    values = {
        "corpus": "c", "output": "o", "init": "tiny", "max_length": 24, "corruption": "uniform",
        "objectives": {"masked_lm": 1.0}, **change,
    }  # fmt: skip
    settings = PretrainSettings.parse(values, where="test")
    parts = assemble(settings)
    texts = tokenise(documents, "d", TOKENIZER.serialised, cache=tmp_path)
    rows = np.arange(len(texts))
    examples = PretrainExamples(texts, parts.view, TOKENIZER, 24, seed=5, rows=rows[:2])
    task = PretrainTask(BACKBONE, TOKENIZER, parts)
    return prepare_held_out(examples, rows[2:], documents, task, settings.probes)


def test_batches_of_many_and_never_of_one(tmp_path: Path) -> None:
    # 65 documents: alone in a batch, one would be given its own vector for another's.
    documents = [Document(str(n), numbered(n)) for n in range(67)]
    held_out = prepare(documents, tmp_path)
    assert [len(batch["keys"]) for batch in held_out.texts] == [65]
    assert [len(batch["keys"]) for batch in held_out.steps] == [65]
    drawn = [key for batch in held_out.texts for key in batch["keys"].tolist()]
    assert len(set(drawn)) == 65


def test_a_view_of_two_texts_is_kept(tmp_path: Path) -> None:
    documents = [Document(str(n), numbered(n)) for n in range(8)]
    held_out = prepare(documents, tmp_path, view={"name": "neighbours", "span": 10})
    (batch,) = held_out.steps
    assert len(batch["keys"]) == 12
    assert batch["attention_mask"].sum(1).max() <= 10
    assert len(held_out.texts[0]["keys"]) == 6, (
        "what is measured on texts is measured on whole ones"
    )
