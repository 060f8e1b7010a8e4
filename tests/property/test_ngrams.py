"""N-gram tables and PMI equal plain loops, whatever the memory, the blocks and the vocabulary."""

from __future__ import annotations

import math
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from isthmus.records import Document
from isthmus.text import corpus as corpus_module
from isthmus.text import ngrams as ngrams_module
from isthmus.text import pmi as pmi_module
from isthmus.text.corpus import TokenisedCorpus, tokenise
from isthmus.text.ngrams import NgramCounts, count_ngrams
from isthmus.text.pmi import pmi_column
from isthmus.text.tokenizer import Tokenizer
from isthmus.text.windows import regular_tokens

ORDERS = (1, 2, 3, 4)
SPECIAL = ("[PAD]", "[UNK]", "[MASK]")
# Either side of the lines where a 4-gram fits into 64 bits and where an id needs another bit.
SIZES = (7, 65_536, 65_537)
known_regular_tokens = lru_cache(regular_tokens)


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


def build(documents: list[list[str]], size: int, folder: str, source: str = "s") -> TokenisedCorpus:
    texts = [Document(str(n), " ".join(words)) for n, words in enumerate(documents)]
    serialised = tokenizer_of(size).serialised
    return tokenise(texts, source, serialised, workers=1, cache=Path(folder))


def one_after_the_other(tasks: Iterable[Any], jobs: int, folder: Path) -> Iterator[Any]:
    return (function(*arguments) for function, arguments in tasks)


def tiny(patch: pytest.MonkeyPatch, block: int) -> None:
    """Memory is counted in entries, and processes are pretended."""
    patch.setattr(corpus_module, "BLOCK_DOCUMENTS", block)
    patch.setattr(ngrams_module, "ENTRY_BYTES", 1)
    patch.setattr(ngrams_module, "OWN_BYTES", 0)
    patch.setattr(ngrams_module, "WORTH_PROCESSES", 0)
    patch.setattr(ngrams_module, "in_parallel", one_after_the_other)
    patch.setattr(pmi_module, "in_parallel", one_after_the_other)
    patch.setattr(pmi_module, "PIECE_TOKENS", 5)
    # 65,536 words are looked through once, not in every example.
    patch.setattr(ngrams_module, "regular_tokens", known_regular_tokens)
    patch.setattr(pmi_module, "regular_tokens", known_regular_tokens)
    # Real pools are shut down at the end; there is none.
    patch.setattr(ngrams_module, "let_go", lambda jobs: None)
    patch.setattr(pmi_module, "let_go", lambda jobs: None)


def least_memory(corpus: TokenisedCorpus) -> int:
    return math.ceil(int(corpus.lengths.sum()) ** (2 / 3)) + 1


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


def check_counts(counts: NgramCounts, expected: dict[int, Counter[tuple[int, ...]]]) -> None:
    assert counts.totals == {order: expected[order].total() for order in ORDERS}
    ids = sorted({*(window[0] for window in expected[1]), 0, 3, counts.vocabulary - 1})
    for order in ORDERS:
        windows = list(expected[order])
        # Beside what is there: special ids, strange ids, those that would be others when cut to 32
        # bits, and each window with one id changed.
        windows += [(i,) * order for i in (*ids, -1, counts.vocabulary)]
        windows += [(*window[:-1], window[-1] + (1 << 32)) for window in windows[:9]]
        windows += [(*window[1:], i) for window in list(expected[order])[:9] for i in ids]
        windows += [(i, *window[1:]) for window in list(expected[order])[:9] for i in ids]
        found = counts.count(order, np.array(windows, dtype=np.int64).reshape(-1, order))
        assert found.tolist() == [expected[order][window] for window in windows]
        keys = np.load(counts.folder / f"keys-{order}.npy")
        assert len(keys) == len(expected[order])
        assert (keys[1:] > keys[:-1]).all()


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.mark.parametrize("size", SIZES)
@settings(max_examples=20)
@given(data=st.data())
def test_counts_are_those_of_plain_loops(size: int, data: st.DataObject) -> None:
    documents = data.draw(corpora(size))
    tokenizer = tokenizer_of(size)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        tiny(patch, data.draw(st.integers(1, 3)))
        corpus = build(documents, size, folder)
        memory = least_memory(corpus) * data.draw(st.integers(1, 3))
        counts = count_ngrams(corpus, tokenizer, memory, data.draw(st.integers(1, 3)))
        check_counts(counts, counted(corpus, {0, 1, 2}))
        assert not list(corpus.folder.glob(".*.building"))
        # Ample memory, one process: the same bytes.
        other = build(documents, size, f"{folder}/other")
        again = count_ngrams(other, tokenizer, 1 << 30, 1)
        assert contents(again.folder) == contents(counts.folder)
        check_counts(NgramCounts.load(counts.folder), counted(corpus, {0, 1, 2}))


def plain_pmi(
    window: tuple[int, ...], counters: dict[int, Counter[tuple[int, ...]]], minimum: int
) -> float:
    count = counters[len(window)][window]
    if count == 0 or count < minimum:
        return 0.0
    value = math.log(count / counters[len(window)].total())
    return value - sum(math.log(counters[1][(w,)] / counters[1].total()) for w in window)


@pytest.mark.parametrize("size", [SIZES[0], SIZES[-1]])
@settings(max_examples=20)
@given(data=st.data())
def test_pmi_is_that_of_plain_loops(size: int, data: st.DataObject) -> None:
    tokenizer = tokenizer_of(size)
    minimum = data.draw(st.integers(1, 3))
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        tiny(patch, data.draw(st.integers(1, 3)))
        corpus = build(data.draw(corpora(size)), size, folder)
        known = corpus
        if data.draw(st.booleans()):
            known = build(data.draw(corpora(size)), size, folder, "other")
        counters = counted(known, {0, 1, 2})
        column = pmi_column(corpus, count_ngrams(known, tokenizer), tokenizer, minimum)
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
