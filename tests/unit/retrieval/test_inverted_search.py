"""The verbs `index` and `search` with a sparse encoder."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.sparse

from isthmus.collections import open_corpus, read_run
from isthmus.encoders.sparse import SparseEncoder, SparseSettings
from isthmus.errors import InputError, SettingsError
from isthmus.indexes.manifest import InvertedSettings
from isthmus.indexes.verification import read_manifest
from isthmus.nn.sizes import new_backbone
from isthmus.records import Document, Query, Ranking
from isthmus.retrieval.searcher import open_searcher
from isthmus.retrieval.verbs.index import IndexSettings, index
from isthmus.retrieval.verbs.search import SearchSettings, search
from isthmus.text.new_tokenizer import new_tokenizer
from isthmus.text.truncation import CutTexts


@dataclass
class TermEncoder:
    """Weighs words by how often they occur; the vocabulary is what it has been shown."""

    vocabulary: dict[str, int]
    name: str = "terms"
    fingerprint: str = "terms-1"
    kind: str = "sparse"
    encoded: int = 0
    assumed: str = ""

    @property
    def settings(self) -> SimpleNamespace:
        return SimpleNamespace(titles=True)

    def described(self) -> dict[str, str]:
        return {"kind": self.kind}

    @property
    def dimension(self) -> int:
        return len(self.vocabulary)

    def has_tokens(self, text: str) -> bool:
        return bool(text.split())

    def encode_queries(self, texts: Sequence[str]) -> scipy.sparse.csr_matrix:
        rows, terms = [], []
        for row, text in enumerate(texts):
            known = [self.vocabulary[w] for w in text.lower().split() if w in self.vocabulary]
            rows += [row] * len(known)
            terms += known
        counts = scipy.sparse.csr_matrix(
            (np.ones(len(rows), dtype=np.float32), (rows, terms)),
            shape=(len(texts), self.dimension),
        )
        counts.sum_duplicates()
        return counts.log1p()

    def encode_documents(self, documents: Sequence[Document]) -> scipy.sparse.csr_matrix:
        self.encoded += len(documents)
        return self.encode_queries([document.contents(True) for document in documents])

    @property
    def cut_texts(self) -> CutTexts:
        return CutTexts(100)

    def encode_blocks(self, blocks: Iterable[Sequence[Document]], encoded: Any = None) -> Any:
        return ((block, self.encode_documents(block)) for block in blocks)


def encoder_of(corpus: str) -> TermEncoder:
    texts = (document.contents(True) for document in open_corpus(corpus).documents())
    words = sorted({word for text in texts for word in text.lower().split()})
    return TermEncoder({word: number for number, word in enumerate(words)})


@pytest.fixture
def sparse(corpus: str, monkeypatch: pytest.MonkeyPatch) -> TermEncoder:
    found = encoder_of(corpus)
    for load in ("load_encoder", "load_query_encoder"):
        monkeypatch.setattr(f"isthmus.encoders.{load}", lambda *_, **__: found)
    return found


def test_sparse_encoder_fills_an_inverted_index(
    corpus: str, tmp_path: Path, sparse: TermEncoder
) -> None:
    manifest = read_manifest(index(corpus, tmp_path / "index", "model"))
    assert (manifest.kind, manifest.documents, manifest.dtype) == ("inverted", 5, None)
    assert manifest.dimension == sparse.dimension
    assert manifest.inverted == InvertedSettings()
    (ranking,) = open_searcher(tmp_path / "index").search([Query("q", "river bank")], depth=3)
    one = float(np.floor(100 * np.log1p(np.float32(1)))) ** 2
    assert ranking == Ranking("q", ("d0", "d1", "d2"), (2 * one, one, one))
    assert [hit.id for hit in search(tmp_path / "index", "snow")] == ["d4"]
    assert search(tmp_path / "index", "zebra") == []


def test_it_tells_how_many_terms_a_document_has(
    corpus: str, tmp_path: Path, sparse: TermEncoder, capsys: pytest.CaptureFixture[str]
) -> None:
    index(corpus, tmp_path / "all", "m")
    stored = read_manifest(tmp_path / "all").layout
    assert stored is not None
    assert f"{stored.postings / 5:.1f} terms in an average document" in capsys.readouterr().err
    one = IndexSettings.parse({"inverted": {"terms": 1}}, "--set")
    index(corpus, tmp_path / "one", "m", settings=one)
    assert "1.0 terms in an average document" in capsys.readouterr().err


def test_settings_reach_the_index(corpus: str, tmp_path: Path, sparse: TermEncoder) -> None:
    settings = IndexSettings.parse({"inverted": {"terms": 1, "weights": "float"}}, "--set")
    manifest = read_manifest(index(corpus, tmp_path / "index", "model", settings=settings))
    assert manifest.inverted == settings.inverted
    assert manifest.layout is not None
    assert manifest.layout.postings == 5
    with pytest.raises(SettingsError, match="terms = 0"):
        IndexSettings.parse({"inverted": {"terms": 0}}, "--set")


def test_run_file_fused_with_bm25(corpus: str, tmp_path: Path, sparse: TermEncoder) -> None:
    index(corpus, tmp_path / "sparse", "model")
    index(corpus, tmp_path / "bm25")
    (tmp_path / "queries.tsv").write_text("q1\triver bank\nq2\tsnow\n")
    settings = SearchSettings(hybrid=[str(tmp_path / "bm25")])
    run = tmp_path / "out.trec"
    search(tmp_path / "sparse", queries=tmp_path / "queries.tsv", run=run, settings=settings)
    found = read_run(run)
    assert found.rankings["q1"].document_ids[0] == "d0"
    assert found.rankings["q2"].document_ids == ("d4",)


def test_learned_query_terms_are_searched_without_the_transformer(
    corpus: str, tmp_path: Path
) -> None:
    texts = [document.contents(True) for document in open_corpus(corpus).documents()]
    tokenizer = new_tokenizer(texts, 90)
    backbone = new_backbone("tiny", len(tokenizer), tokenizer.pad_id, max_length=144, seed=0)
    settings = SparseSettings.parse({"query": "terms"}, "test")
    SparseEncoder(backbone, tokenizer, settings).save(tmp_path / "model")
    folder = index(corpus, tmp_path / "index", str(tmp_path / "model"))
    queries = [Query(str(number), text) for number, text in enumerate(texts)]
    expected = open_searcher(folder).search(queries)
    assert all(len(ranking) for ranking in expected)
    (tmp_path / "model" / "model.safetensors").unlink()
    assert open_searcher(folder).search(queries) == expected
    with pytest.raises(InputError, match=r"has no model.safetensors"):
        index(corpus, tmp_path / "another", str(tmp_path / "model"))


def test_real_documents(shared_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Medline: words as terms, against the whole product."""
    corpus = f"beir:{shared_data / 'collections' / 'medline'}"
    encoder = encoder_of(corpus)
    for load in ("load_encoder", "load_query_encoder"):
        monkeypatch.setattr(f"isthmus.encoders.{load}", lambda *_, **__: encoder)
    searcher = open_searcher(index(corpus, tmp_path / "index", "model"))
    documents = list(open_corpus(corpus).documents())
    texts = [document.text[:80] for document in documents[:50]]
    queries = [Query(str(number), text) for number, text in enumerate(texts)]
    stored, asked = encoder.encode_documents(documents), encoder.encode_queries(texts)
    for matrix in (stored, asked):
        matrix.data = np.floor(100 * matrix.data.astype(np.float64))
    for ranking, scores in zip(
        searcher.search(queries, depth=100), (asked @ stored.T).toarray(), strict=True
    ):
        named = {d.id: float(s) for d, s in zip(documents, scores, strict=True) if s}
        assert ranking == Ranking.sorted(ranking.query_id, named, 100)
    assert json.loads((tmp_path / "index" / "manifest.json").read_text())["kind"] == "inverted"
