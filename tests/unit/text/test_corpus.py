"""Trouble while a corpus is tokenised, and real documents."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from isthmus.collections import open_corpus
from isthmus.records import Document
from isthmus.text.corpus import cache_folder, tokenise
from isthmus.text.tokenizer import new_tokenizer

TOKENIZER = new_tokenizer(["the quick brown fox"], 60)


def test_an_empty_text_is_a_document_without_tokens(tmp_path: Path) -> None:
    documents = [Document("1", ""), Document("2", "fox"), Document("3", " ")]
    corpus = tokenise(documents, "s", TOKENIZER.serialised, cache=tmp_path)
    assert [len(document.tokens) for document in corpus] == [0, 1, 0]
    assert corpus.lengths.tolist() == [0, 1, 0]
    assert corpus[0].sentences.tolist() == []


def test_another_process_is_told_where_a_corpus_lies_and_no_more(tmp_path: Path) -> None:
    documents = [Document(str(n), "fox dog " * 50) for n in range(100)]
    corpus = tokenise(documents, "s", TOKENIZER.serialised, cache=tmp_path)
    sent = pickle.dumps(corpus)
    assert len(sent) < 1000 < corpus.lengths.sum()
    there = pickle.loads(sent)
    assert [document.tokens.tolist() for document in there] == [
        document.tokens.tolist() for document in corpus
    ]


def test_where_corpora_are_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("ISTHMUS_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "isthmus"
    monkeypatch.setenv("ISTHMUS_CACHE", str(tmp_path / "mine"))
    assert cache_folder() == tmp_path / "mine"


def test_real_documents(shared_data: Path, tmp_path: Path) -> None:
    source = open_corpus(str(shared_data / "collections" / "scifact"))
    documents = list(islice(source.documents(), 300))
    tokenizer = new_tokenizer([document.contents() for document in documents], 2000)

    def stream() -> Iterator[Document]:
        yield from documents

    corpus = tokenise(stream(), "scifact", tokenizer.serialised, cache=tmp_path)
    assert [document.id for document in corpus] == [document.id for document in documents]
    for row, document in enumerate(documents):
        encoding = tokenizer.backend.encode(document.contents(), add_special_tokens=False)
        assert corpus[row].tokens.tolist() == encoding.ids
        assert corpus[row].words.tolist() == encoding.word_ids
    sentences = [len(document.sentences) for document in corpus]
    assert 4 < sum(sentences) / len(sentences) < 15
