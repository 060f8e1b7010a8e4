"""An encoder small enough to reason about, and a corpus for it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from zlib import crc32

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from isthmus.config.models import on_this_disk
from isthmus.indexes.ragged import Both, Ragged, TokenVectors, with_different_pieces
from isthmus.records import Document
from isthmus.retrieval.index import index
from isthmus.retrieval.searcher import Searcher, open_searcher
from isthmus.text.order import CutTexts
from isthmus.text.passages import word_starts


@dataclass
class WordEncoder:
    """Counts words into buckets; the vector of a word is its bucket."""

    name: str = "words"
    fingerprint: str = "words-1"
    dimension: int = 97
    kind: str = "dense"
    similarity: str = "dot"
    read: list[str] = field(default_factory=list)  # documents, shared with that `with_tokens`
    gives_tokens: bool = False
    cut_texts: CutTexts = field(default_factory=lambda: CutTexts(100))
    assumed: str = ""

    @property
    def settings(self) -> SimpleNamespace:
        return SimpleNamespace(titles=True, room=lambda _: 16)

    @property
    def tokenizer(self) -> SimpleNamespace:
        return SimpleNamespace(
            fingerprint="words",
            starts=word_starts,
            regular_ids=np.arange(self.dimension),
            backend=SimpleNamespace(decode=lambda ids: " ".join(map(str, ids))),
        )

    def described(self) -> dict[str, Any]:
        return {"kind": self.kind}

    def has_tokens(self, text: str) -> bool:
        return bool(text.split())

    @property
    def encoded(self) -> int:
        return len(self.read)

    def with_tokens(self) -> WordEncoder:
        both = copy(self)
        both.gives_tokens = True
        return both

    def encode_queries(self, texts: Sequence[str]) -> Any:
        words = [
            np.array([crc32(word.encode()) % self.dimension for word in text.lower().split()], int)
            for text in texts
        ]
        each = np.eye(self.dimension, dtype=np.float32)
        vectors = np.stack([each[some].sum(0) for some in words])
        if not self.gives_tokens:
            return vectors
        pieces = Ragged.of(words, np.empty(0, dtype=int))
        return Both(vectors, TokenVectors(Ragged(each[pieces.values], pieces.starts), pieces))

    def token_places(self, texts: Sequence[str], queries: bool = False) -> Any:
        pieces = [self.encode_queries([text]).tokens.pieces.values for text in texts]
        spans = [[word.span() for word in re.finditer(r"\S+", text)] for text in texts]
        return list(zip(pieces, map(np.array, spans), strict=True))

    def encode_documents(self, documents: Sequence[Document], progress: bool = False) -> Any:
        # Without the texts that are drawn, of which the centre of token vectors is.
        self.read.extend(document.id for document in documents if document.id)
        found = self.encode_queries([document.contents(True) for document in documents])
        if not isinstance(found, Both):
            return found
        return Both(found.vectors, with_different_pieces(found.tokens))

    def encode_blocks(self, blocks: Iterable[Sequence[Document]], encoded: Any = None) -> Any:
        return ((block, self.encode_documents(block)) for block in blocks)

    def difference_of_int8(self, documents: Sequence[Document]) -> str:
        return "none"


@pytest.fixture(autouse=True)
def encoders_on_this_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """The names of the encoders here are as good as folders, and none is loaded yet."""
    monkeypatch.setattr("isthmus.retrieval.searcher._recent", {})
    monkeypatch.setattr(
        "isthmus.retrieval.searcher.on_this_disk",
        lambda name: name if name in ("model", "words", "terms") else on_this_disk(name),
    )


@pytest.fixture
def encoder(monkeypatch: pytest.MonkeyPatch) -> WordEncoder:
    """What every model name loads in these tests."""
    found = WordEncoder()

    def load_encoder(path: str, *_: object) -> WordEncoder:
        found.name = path
        return found

    for load in ("load_encoder", "load_query_encoder", "load_indexed_encoder"):
        monkeypatch.setattr(f"isthmus.encoders.{load}", load_encoder)
    return found


class SparseWordEncoder(WordEncoder):
    """The same counts as weights of terms."""

    def encode_queries(self, texts: Sequence[str]) -> csr_matrix:  # type: ignore[override]
        return csr_matrix(super().encode_queries(texts))


@pytest.fixture
def sparse_encoder(monkeypatch: pytest.MonkeyPatch) -> SparseWordEncoder:
    """What every model name loads in these tests."""
    found = SparseWordEncoder(kind="sparse")
    for load in ("load_encoder", "load_query_encoder", "load_indexed_encoder"):
        monkeypatch.setattr(f"isthmus.encoders.{load}", lambda *_, **__: found)
    return found


@pytest.fixture
def corpus(tmp_path: Path) -> str:
    texts = ["river bank", "money bank", "boat on the river", "loan and interest", "snow"]
    file = tmp_path / "corpus.jsonl"
    with file.open("w", encoding="utf-8") as stream:
        for row, text in enumerate(texts):
            record = {"_id": f"d{row}", "title": f"Title{row}", "text": text}
            stream.write(json.dumps(record) + "\n")
    return str(file)


@pytest.fixture
def bm25(corpus: str, tmp_path: Path) -> Searcher:
    return open_searcher(index(corpus, tmp_path / "bm25"))


@pytest.fixture
def folder(corpus: str, tmp_path: Path, encoder: object) -> Path:
    """An index of the corpus with both fields."""
    return index(corpus, tmp_path / "index", "model")


@pytest.fixture
def both(folder: Path) -> Searcher:
    return open_searcher(folder)


def more_documents(file: Path, texts: dict[str, str]) -> str:
    lines = [json.dumps({"_id": i, "text": text}) for i, text in texts.items()]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(file)


@pytest.fixture
def more(tmp_path: Path) -> str:
    texts = {"d1": "thaw", "d9": "glacier melting", "d8": "river delta"}
    return more_documents(tmp_path / "more.jsonl", texts)
