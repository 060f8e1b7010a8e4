"""PMI equals plain loops, whatever is held at a time, the blocks and the vocabulary."""

from __future__ import annotations

import math
import tempfile
from collections import Counter
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from isthmus.records import Document
from isthmus.text import corpus as corpus_module
from isthmus.text import pmi as pmi_module
from isthmus.text.corpus import TokenisedCorpus, tokenise
from isthmus.text.pmi import pmi_column
from isthmus.text.tokenizer import Tokenizer

ORDERS = (1, 2, 3, 4)
SPECIAL = ("[PAD]", "[UNK]", "[MASK]")


@lru_cache
def tokenizer_of(size: int) -> Tokenizer:
    """Words that are numbers; the word "n" has the id n."""
    vocabulary = {
        SPECIAL[n] if n < len(SPECIAL) else str(n): n for n in range(size)
    }  # fmt: skip
    backend = FastTokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return Tokenizer(
        PreTrainedTokenizerFast(
            tokenizer_object=backend, pad_token="[PAD]", unk_token="[UNK]", mask_token="[MASK]"
        )
    )


@st.composite
def corpora(draw: st.DrawFn, size: int) -> list[list[str]]:
    """A few documents over a few words, the first and last ids among them, and special tokens."""
    words = [str(n) for n in {3, 4, size - 1, size - 2}] + ["[MASK]", "unknown"]
    repeated = st.sampled_from(words[:3])
    texts = st.lists(st.sampled_from(words), max_size=12) | st.lists(repeated, max_size=40)
    return draw(st.lists(texts, min_size=1, max_size=8))


def counted(corpus: TokenisedCorpus, special: set[int]) -> dict[int, Counter[tuple[int, ...]]]:
    counters: dict[int, Counter[tuple[int, ...]]] = {order: Counter() for order in ORDERS}
    for document in corpus:
        tokens = document.tokens.tolist()
        for order in ORDERS:
            for start in range(len(tokens) - order + 1):
                window = tuple(tokens[start : start + order])
                if not special & set(window):
                    counters[order][window] += 1
    return counters


def plain_pmi(
    window: tuple[int, ...], counters: dict[int, Counter[tuple[int, ...]]], minimum: int
) -> float:
    count = counters[len(window)][window]
    if count < minimum:
        return 0.0
    value = math.log(count / counters[len(window)].total())
    return value - sum(math.log(counters[1][(w,)] / counters[1].total()) for w in window)


@pytest.mark.parametrize("size", [7, 65_537])
@settings(max_examples=20)
@given(data=st.data())
def test_pmi_is_that_of_plain_loops(size: int, data: st.DataObject) -> None:
    tokenizer = tokenizer_of(size)
    minimum = data.draw(st.integers(1, 3))
    documents = data.draw(corpora(size))
    texts = [Document(str(n), " ".join(words)) for n, words in enumerate(documents)]
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpus_module, "BLOCK_DOCUMENTS", data.draw(st.integers(1, 3)))
        patch.setattr(pmi_module, "HELD", data.draw(st.integers(8, 80)))
        patch.setattr(pmi_module, "_READ", data.draw(st.integers(1, 50)))
        corpus = tokenise(texts, "s", tokenizer.serialised, workers=1, cache=Path(folder))
        counters = counted(corpus, {0, 1, 2})
        column = pmi_column(corpus, tokenizer, minimum)
        assert len(column) == len(corpus)
        for row, document in enumerate(corpus):
            tokens = document.tokens.tolist()
            expected = np.full((len(tokens), 3), np.nan)
            for order in ORDERS[1:]:
                for start in range(len(tokens) - order + 1):
                    window = tuple(tokens[start : start + order])
                    if not {0, 1, 2} & set(window):
                        expected[start, order - 2] = plain_pmi(window, counters, minimum)
            assert column[row].dtype == np.float32
            np.testing.assert_allclose(column[row], expected, rtol=1e-6, atol=1e-6)
