"""The verbs `index` and `search` with a sparse encoder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from isthmus.collections import open_corpus, read_run
from isthmus.encoders.sparse import SparseEncoder, SparseSettings
from isthmus.errors import InputError, SettingsError
from isthmus.indexes.manifest import InvertedSettings
from isthmus.indexes.verification import read_manifest
from isthmus.nn.sizes import new_backbone
from isthmus.records import Query, Ranking
from isthmus.retrieval.searcher import open_searcher
from isthmus.retrieval.verbs.index import IndexSettings, index
from isthmus.retrieval.verbs.search import search, search_file
from isthmus.text.new_tokenizer import new_tokenizer


def test_sparse_encoder_fills_an_inverted_index(
    corpus: str, tmp_path: Path, sparse_encoder: Any
) -> None:
    manifest = read_manifest(index(corpus, tmp_path / "index", "model"))
    assert (manifest.kind, manifest.documents, manifest.dtype) == ("inverted", 5, None)
    assert manifest.dimension == sparse_encoder.dimension
    assert manifest.inverted == InvertedSettings()
    (ranking,) = open_searcher(tmp_path / "index").search([Query("q", "river bank")], depth=3)
    one = 100.0**2
    assert ranking == Ranking("q", ("d0", "d1", "d2"), (2 * one, one, one))
    assert [hit.id for hit in search(tmp_path / "index", "snow")] == ["d4"]
    assert search(tmp_path / "index", "volcano") == []


def test_it_tells_how_many_terms_a_document_has(
    corpus: str, tmp_path: Path, sparse_encoder: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    index(corpus, tmp_path / "all", "m")
    stored = read_manifest(tmp_path / "all").layout
    assert stored is not None
    assert f"{stored.postings / 5:.1f} terms in an average document" in capsys.readouterr().err
    one = IndexSettings.parse({"inverted": {"terms": 1}}, "--set")
    index(corpus, tmp_path / "one", "m", settings=one)
    assert "1.0 terms in an average document" in capsys.readouterr().err


def test_settings_reach_the_index(corpus: str, tmp_path: Path, sparse_encoder: Any) -> None:
    settings = IndexSettings.parse({"inverted": {"terms": 1, "weights": "float"}}, "--set")
    manifest = read_manifest(index(corpus, tmp_path / "index", "model", settings=settings))
    assert manifest.inverted == settings.inverted
    assert manifest.layout is not None
    assert manifest.layout.postings == 5
    with pytest.raises(SettingsError, match="terms = 0"):
        IndexSettings.parse({"inverted": {"terms": 0}}, "--set")


def test_run_file_fused_with_bm25(corpus: str, tmp_path: Path, sparse_encoder: Any) -> None:
    index(corpus, tmp_path / "both", ["model", "bm25"])
    (tmp_path / "queries.tsv").write_text("q1\triver bank\nq2\tsnow\n")
    search_file(tmp_path / "both", tmp_path / "queries.tsv", tmp_path / "out.trec")
    found = read_run(tmp_path / "out.trec")
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
