"""PMI of a corpus small enough to compute by hand, and what is refused."""

from __future__ import annotations

import math
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from tests.factories import tokenised

from isthmus.errors import InputError
from isthmus.text import corpus as corpus_module
from isthmus.text import pmi
from isthmus.text.pmi import pmi_column
from isthmus.text.tokenizer import new_tokenizer

TOKENIZER = new_tokenizer(["new york is a city and a city is new"] * 3, 100)
TEXTS = ["new york is new", "", "new york", "a § city"]


def test_by_hand(tmp_path: Path) -> None:
    corpus = tokenised(TEXTS, TOKENIZER, tmp_path)
    column = pmi_column(corpus, TOKENIZER, minimum_count=1)
    # Tokens: new 3, york 2, is 1, a 1, city 1 of 8. Bigrams: new york 2, york is, is new of 4.
    nan = math.nan
    expected = [
        [math.log(2 / 4) - math.log(3 / 8) - math.log(2 / 8),
         math.log(1 / 2) - math.log(3 / 8) - math.log(2 / 8) - math.log(1 / 8),
         math.log(1 / 1) - 2 * math.log(3 / 8) - math.log(2 / 8) - math.log(1 / 8)],
        [math.log(1 / 4) - math.log(2 / 8) - math.log(1 / 8),
         math.log(1 / 2) - math.log(2 / 8) - math.log(1 / 8) - math.log(3 / 8), nan],
        [math.log(1 / 4) - math.log(1 / 8) - math.log(3 / 8), nan, nan],
        [nan, nan, nan],
    ]  # fmt: skip
    np.testing.assert_allclose(column[0], expected, rtol=1e-6)
    assert column[1].shape == (0, 3)
    np.testing.assert_allclose(column[2], [[*expected[0][:1], nan, nan], [nan] * 3], rtol=1e-6)
    assert np.isnan(column[3]).all(), "nothing reaches over an unknown token"


def test_below_the_threshold_is_zero(tmp_path: Path) -> None:
    corpus = tokenised(TEXTS, TOKENIZER, tmp_path)
    twice = pmi_column(corpus, TOKENIZER, minimum_count=2)
    assert twice[0][0, 0] > 0
    assert twice[0][1:3, 0].tolist() == [0, 0]


def test_memory_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One token is most of the corpus, and more than may be held at a time."""
    monkeypatch.setattr(corpus_module, "BLOCK_DOCUMENTS", 100)
    monkeypatch.setattr(pmi, "HELD", 1 << 14)
    monkeypatch.setattr(pmi, "_READ", 1 << 10)
    generator = np.random.default_rng(0)
    texts = (" the ".join(generator.choice(list("abcdefghijkl"), 21)) for _ in range(4000))
    tokenizer = new_tokenizer(["the a b c d e f g h i j k l"] * 2, 100)
    corpus = tokenised(list(texts), tokenizer, tmp_path)
    tokens = int(corpus.lengths.sum())
    tracemalloc.start()
    pmi_column(corpus, tokenizer, 1)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 20 * tokens, "the keys and places of all n-grams alone are 16 bytes each"


def test_damaged_values_are_refused(tmp_path: Path) -> None:
    corpus = tokenised(TEXTS, TOKENIZER, tmp_path)
    pmi_column(corpus, TOKENIZER, 1)
    (file,) = corpus.folder.glob("pmi-*.npy")
    for damage in (file.read_bytes()[:-4], b"", file.read_bytes().replace(b"(9, 3)", b"(8, 3)")):
        file.write_bytes(damage)
        with pytest.raises(InputError, match="is damaged"):
            pmi_column(corpus, TOKENIZER, 1)


def test_rows_outside_are_refused(tmp_path: Path) -> None:
    corpus = tokenised(TEXTS, TOKENIZER, tmp_path)
    column = pmi_column(corpus, TOKENIZER, 1)
    for row in (-1, len(TEXTS)):
        with pytest.raises(IndexError):
            column[row]
