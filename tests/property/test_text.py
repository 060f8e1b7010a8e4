"""Sentences tile a text; the tokenised corpus holds exactly what the tokenizer says."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.records import Document
from isthmus.text import corpus as corpus_module
from isthmus.text.corpus import TokenisedCorpus, tokenise
from isthmus.text.sentences import sentence_starts
from isthmus.text.tokenizer import new_tokenizer

TOKENIZER = new_tokenizer(["Dr. Lee met Mr. X in 1990. They spoke. Why? Nobody knows!"] * 2, 120)
PROSE = st.lists(
    st.sampled_from(
        ["The cat", " sat", ".", "!", "?", " ", "  ", "\n", "\n\n", "Dr", " e.g", "X", "…", '"',
         " (so", ") ", "3", ".14", " naïve", "。", "東京", "a"]
    ),
    max_size=25,
).map("".join)  # fmt: skip
TEXTS = PROSE | st.text(max_size=60)
DOCUMENTS = st.lists(st.tuples(TEXTS, st.just("") | TEXTS), min_size=1, max_size=12)


@settings(deadline=None)
@given(TEXTS)
def test_sentences_tile_the_text(text: str) -> None:
    starts = sentence_starts(text)
    assert starts == sorted(set(starts))
    assert starts[:1] == ([0] if text else [])
    assert all(0 <= start < len(text) for start in starts)
    spans = [text[a:b] for a, b in itertools.pairwise([*starts, len(text)])]
    assert "".join(spans) == text
    assert all(span.strip() for span in spans[1:]), "no sentence is empty"


def made(documents: list[tuple[str, str]]) -> list[Document]:
    return [Document(f"d{n}", text, title) for n, (text, title) in enumerate(documents)]


@settings(deadline=None, max_examples=40)
@given(DOCUMENTS, st.booleans(), st.integers(1, 5))
def test_the_corpus_on_disk_is_direct_tokenisation(
    documents: list[tuple[str, str]], titles: bool, block: int
) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpus_module, "BLOCK_DOCUMENTS", block)
        corpus = tokenise(
            made(documents), "s", TOKENIZER.serialised, titles, workers=1, cache=Path(folder)
        )
        blocks = list(corpus.folder.glob("*.arrow"))
        assert len(blocks) == -(-len(documents) // block)
        assert len(corpus) == len(documents)
        again = TokenisedCorpus(corpus.folder)
        for row, document in enumerate(made(documents)):
            text = document.contents(titles)
            encoding = TOKENIZER.backend.encode(text, add_special_tokens=False)
            for opened in (corpus, again):
                found = opened[row]
                assert found.id == document.id
                assert found.tokens.tolist() == encoding.ids
                assert found.words.tolist() == encoding.word_ids
                assert opened.lengths[row] == len(encoding.ids)
            check_sentences(text, encoding.offsets, corpus[row].sentences.tolist())
        assert corpus.row_of_id() == {f"d{n}": n for n in range(len(documents))}
        texts = [tuple(document.tokens.tolist()) for document in corpus]
        equal = [[one == two for two in texts] for one in texts]
        assert ((corpus.keys[:, None] == corpus.keys[None, :]) == np.array(equal)).all()


def check_sentences(text: str, offsets: list[tuple[int, int]], found: list[int]) -> None:
    # The first token that reaches beyond a sentence's start, where there is one.
    expected = set()
    for start in sentence_starts(text):
        inside = [place for place, (_, end) in enumerate(offsets) if end > start]
        expected |= set(inside[:1])
    assert found == sorted(expected)
    assert found[:1] == ([0] if offsets else [])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


ONE = [Document("a", "The cat sat.", "Cats"), Document("b", "A dog. It ran.")]


def test_another_source_tokenizer_or_title_switch_is_another_folder(folder: Path) -> None:
    other = new_tokenizer(["The cat sat. A dog. It ran."], 60)
    folders = {
        tokenise(ONE, source, tokenizer.serialised, titles, workers=1, cache=folder).folder
        for source in ("s", "t")
        for tokenizer in (TOKENIZER, other)
        for titles in (True, False)
    }
    assert len(folders) == 8


def test_a_corpus_that_is_there_is_reused_without_reading_documents(folder: Path) -> None:
    def unreadable() -> Iterator[Document]:
        yield from [pytest.fail("read")]

    first = tokenise(ONE, "s", TOKENIZER.serialised, cache=folder)
    again = tokenise(unreadable(), "s", TOKENIZER.serialised, cache=folder)
    assert again.folder == first.folder
    assert again.fingerprint == first.fingerprint
    assert again[1].tokens.tolist() == first[1].tokens.tolist()


def test_a_build_that_was_interrupted_is_finished(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus_module, "BLOCK_DOCUMENTS", 1)
    documents = [Document(str(n), f"The cat sat {n} times.") for n in range(4)]

    def torn() -> Iterator[Document]:
        yield from documents[:3]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tokenise(torn(), "s", TOKENIZER.serialised, workers=1, cache=folder)
    (partial,) = (folder / "tokenised").iterdir()
    assert not (partial / "manifest.json").exists()
    whole = tokenise(documents, "s", TOKENIZER.serialised, workers=1, cache=folder)
    assert whole.folder == partial
    fresh = tokenise(documents, "s", TOKENIZER.serialised, workers=1, cache=folder / "fresh")
    assert [d.tokens.tolist() for d in whole] == [d.tokens.tolist() for d in fresh]


def test_rows_outside_are_refused(folder: Path) -> None:
    corpus = tokenise(ONE, "s", TOKENIZER.serialised, cache=folder)
    for row in (-1, 2):
        with pytest.raises(IndexError):
            corpus[row]
