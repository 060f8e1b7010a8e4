"""Approximate search through the verbs: built, measured, searched, refused, built again."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from isthmus.errors import InputError, MismatchError, OutputError, SettingsError
from isthmus.indexes.approximation import ApproximationSettings, approximations, read_about
from isthmus.indexes.segments.writer import IndexWriter
from isthmus.indexes.verification import read_manifest
from isthmus.retrieval.approximation_check import add_approximation, check_approximation
from isthmus.retrieval.hybrid import HybridSearcher
from isthmus.retrieval.searcher import open_searcher
from isthmus.retrieval.verbs.index import IndexSettings, index
from isthmus.retrieval.verbs.search import SearchSettings, search
from isthmus.retrieval.verbs.update import MergeSettings, add, merge

pytest.importorskip("faiss", reason="the extra [ann] is not installed")
SEISMIC = pytest.mark.skipif(
    find_spec("seismic") is None, reason="pyseismic-lsr is not installed (no wheel for ARM)"
)


def named(name: str, **more: object) -> IndexSettings:
    return IndexSettings.parse({"approximate": {"name": name}, **more}, "--set")


@SEISMIC
def test_seismic_beside_a_sparse_index(
    corpus: str, tmp_path: Path, sparse_encoder: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = index(corpus, tmp_path / "index", "model")
    index(corpus, folder, "model", settings=named("seismic"))
    assert sparse_encoder.encoded == 5  # no document again
    shown = " ".join(capsys.readouterr().err.split())
    assert "seismic: finds 100.0% of the 5 nearest documents" in shown
    assert "(5 queries, one at a time)" in shown
    found = search(folder, "river bank", settings=SearchSettings(backend="seismic"))
    assert found == search(folder, "river bank")
    index(corpus, tmp_path / "bare", "model", settings=named("seismic", texts=False))
    assert "seismic: finds" in capsys.readouterr().err


@SEISMIC
def test_queries_are_titles_and_first_sentences(
    tmp_path: Path, sparse_encoder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "corpus.jsonl"
    records = [
        {"_id": "a", "title": "The title", "text": "The text."},
        {"_id": "b", "text": "First sentence! Second sentence."},
    ]
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    folder = index(str(file), tmp_path / "index", "model")
    asked: list[str] = []
    plain = sparse_encoder.encode_queries
    monkeypatch.setattr(
        sparse_encoder, "encode_queries", lambda texts: asked.extend(texts) or plain(texts)
    )
    add_approximation(folder, None, ApproximationSettings(name="seismic"))
    assert asked == ["The title", "First sentence!"]


@pytest.mark.parametrize(
    ("kind", "name", "allowed"),
    [
        ("dense", "seismic", "hnsw, ivf"),
        ("inverted", "hnsw", "seismic"),
        ("inverted", "ivf", "seismic"),
        ("bm25", "seismic", "none: BM25 is exact, and fast"),
    ],
)
def test_what_is_not_for_a_kind_is_refused(kind: Any, name: Any, allowed: str) -> None:
    with pytest.raises(SettingsError, match=f"{name} is not for {kind} indexes") as caught:
        check_approximation(ApproximationSettings(name=name), kind)
    assert caught.value.allowed == allowed


def test_refused_before_anything_is_encoded(
    corpus: str, tmp_path: Path, sparse_encoder: Any
) -> None:
    with pytest.raises(SettingsError, match="ivf is not for inverted indexes"):
        index(corpus, tmp_path / "index", "model", settings=named("ivf"))
    assert sparse_encoder.encoded == 0
    with pytest.raises(SettingsError, match="not for an index that a cluster builds") as caught:
        check_approximation(ApproximationSettings(), "dense", sharded=True)
    assert "isthmus merge INDEX --set approximate.name=hnsw" in caught.value.remedy


@pytest.mark.parametrize(
    ("name", "encoders"),
    [("hnsw", "encoder"), pytest.param("seismic", "sparse_encoder", marks=SEISMIC)],
)
def test_an_index_that_grew_gets_it_again(
    corpus: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
    name: Any,
    encoders: str,
) -> None:
    encoder = request.getfixturevalue(encoders)
    folder = index(corpus, tmp_path / "index", "model", settings=named(name))
    more = tmp_path / "more.jsonl"
    more.write_text('{"_id": "d9", "text": "glacier"}\n{"_id": "d0", "text": "melting"}\n')
    add(folder, str(more))
    settings = SearchSettings(backend=name)
    assert search(folder, "glacier melting", settings=settings) == search(folder, "glacier melting")
    with pytest.raises(MismatchError, match="is in segments") as refused:
        add_approximation(folder, None, ApproximationSettings(name=name))
    assert f"isthmus merge {folder} --set approximate.name={name}" in refused.value.remedy
    merge(folder)
    with pytest.raises(InputError, match=f"has no {name} beside it"):
        search(folder, "glacier", settings=settings)
    encoder.encoded = 0
    capsys.readouterr()
    chosen = MergeSettings(approximate=ApproximationSettings(name=name))
    assert merge(folder, settings=chosen).documents == 6
    assert f"{name}: finds 100.0% of the 6 nearest" in " ".join(capsys.readouterr().err.split())
    assert search(folder, "glacier", settings=settings) == search(folder, "glacier")
    assert encoder.encoded == 0
    about = read_about(folder, name)
    add(folder, str(more))
    merge(folder, settings=chosen)
    assert approximations(folder) == [name]
    assert read_about(folder, name) != about, "made of what is there now"


def test_merging_refuses_what_it_cannot_build_before_it_begins(
    corpus: str, tmp_path: Path, encoder: Any
) -> None:
    folder = index(corpus, tmp_path / "index", "model")
    more = tmp_path / "more.jsonl"
    more.write_text('{"_id": "d9", "text": "glacier"}\n')
    add(folder, str(more))
    with pytest.raises(SettingsError, match="seismic is not for dense indexes"):
        merge(folder, settings={"approximate.name": "seismic"})
    assert read_manifest(folder).segments is not None


def test_nobody_builds_while_another_writes(corpus: str, tmp_path: Path, encoder: Any) -> None:
    folder = index(corpus, tmp_path / "index", "model")
    refused = pytest.raises(OutputError, match="another process is writing into")
    with IndexWriter(folder), refused:
        index(corpus, folder, "model", settings=named("hnsw"))
    index(corpus, folder, "model", settings=named("hnsw"))
    with IndexWriter(folder):
        pass  # and the right to write was given back


@SEISMIC
def test_a_backend_is_for_the_indexes_of_its_kind(
    corpus: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    sparse_encoder = request.getfixturevalue("sparse_encoder")
    sparse = index(corpus, tmp_path / "sparse", "model", settings=named("seismic"))
    bm25 = index(corpus, tmp_path / "bm25")
    together = SearchSettings(hybrid=[str(bm25)], backend="seismic")
    exact = SearchSettings(hybrid=[str(bm25)])
    assert search(sparse, "river bank", settings=together) == search(
        sparse, "river bank", settings=exact
    )
    turned = SearchSettings(hybrid=[str(sparse)], backend="seismic")
    assert search(bm25, "snow", settings=turned)
    with pytest.raises(SettingsError, match="hnsw is for a dense index"):
        search(sparse, "snow", settings=SearchSettings(hybrid=[str(bm25)], backend="hnsw"))
    with pytest.raises(SettingsError, match="seismic is for an inverted index") as caught:
        search(bm25, "snow", settings=SearchSettings(backend="seismic"))
    assert caught.value.allowed == "numpy"
    assert sparse_encoder.encoded == 5
    # From Python, each with its own.
    both = HybridSearcher([open_searcher(sparse, backend="seismic"), open_searcher(bm25)])
    assert both.keeps_texts
