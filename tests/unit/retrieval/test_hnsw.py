"""Search by a graph through the commands: built, measured, searched, refused, built again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from isthmus.errors import InputError, MismatchError, SettingsError
from isthmus.indexes.dense.hnsw import HnswSettings, has_hnsw, read_about
from isthmus.retrieval.hnsw import add_hnsw, check_hnsw
from isthmus.retrieval.verbs.index import IndexSettings, index
from isthmus.retrieval.verbs.search import SearchSettings, search
from isthmus.retrieval.verbs.update import add, merge

pytest.importorskip("faiss", reason="the extra [ann] is not installed")
NEAR = SearchSettings(hnsw=True)
BUILT = IndexSettings(hnsw=True)


def test_beside_an_index(
    corpus: str, tmp_path: Path, encoder: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = index(corpus, tmp_path / "index", "model")
    index(corpus, folder, "model", settings=IndexSettings.parse({"hnsw": {"effort": 9}}, "--set"))
    assert encoder.encoded == 5  # no document again
    assert "hnsw: finds 100.0% of the 5 nearest documents" in capsys.readouterr().err
    assert search(folder, "snow", settings=NEAR) == search(folder, "snow")
    bare = IndexSettings(hnsw=True, texts=False)
    index(corpus, tmp_path / "bare", "model", settings=bare)
    assert "hnsw: finds" in capsys.readouterr().err


def test_queries_are_titles_and_first_sentences(
    tmp_path: Path, encoder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "corpus.jsonl"
    records = [
        {"_id": "a", "title": "The title", "text": "The text."},
        {"_id": "b", "text": "First sentence! Second sentence."},
    ]
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    folder = index(str(file), tmp_path / "index", "model")
    asked: list[str] = []
    plain = encoder.encode_queries
    monkeypatch.setattr(
        encoder, "encode_queries", lambda texts: asked.extend(texts) or plain(texts)
    )
    add_hnsw(folder, None, HnswSettings())
    assert asked == ["The title", "First sentence!"]


def test_other_indexes_are_refused_before_anything_is_encoded(
    corpus: str, tmp_path: Path, sparse_encoder: Any
) -> None:
    for model, kind in (("model", "inverted"), ("bm25", "bm25")):
        with pytest.raises(SettingsError, match=f"hnsw is for dense indexes, not for {kind}"):
            index(corpus, tmp_path / "index", model, settings=BUILT)
    assert sparse_encoder.encoded == 0
    assert not (tmp_path / "index").exists()
    with pytest.raises(SettingsError, match="not for an index that a cluster builds") as caught:
        check_hnsw(True, "dense", sharded=True)
    assert "isthmus sync INDEX DOCUMENTS --compact --set hnsw=true" in caught.value.fix


def test_an_index_that_grew_gets_it_again(
    corpus: str, tmp_path: Path, encoder: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = index(corpus, tmp_path / "index", "model", settings=BUILT)
    more = tmp_path / "more.jsonl"
    more.write_text('{"_id": "d9", "text": "glacier"}\n{"_id": "d0", "text": "melting"}\n')
    add(folder, str(more))
    assert search(folder, "glacier melting", settings=NEAR) == search(folder, "glacier melting")
    with pytest.raises(MismatchError, match="in one segment") as refused:
        add_hnsw(folder, None, HnswSettings())
    assert f"isthmus sync {folder} DOCUMENTS --compact --set hnsw=true" in refused.value.fix
    merge(folder)
    with pytest.raises(InputError, match="has no hnsw graph"):
        search(folder, "glacier", settings=NEAR)
    encoder.encoded = 0
    capsys.readouterr()
    assert merge(folder, hnsw=True).documents == 6
    assert "hnsw: finds 100.0% of the 6 nearest" in " ".join(capsys.readouterr().err.split())
    assert search(folder, "glacier", settings=NEAR) == search(folder, "glacier")
    assert encoder.encoded == 0
    about = read_about(folder)
    add(folder, str(more))
    merge(folder, hnsw=True)
    assert has_hnsw(folder)
    assert read_about(folder) != about, "made of what is there now"


def test_it_is_for_the_dense_indexes_of_a_hybrid(corpus: str, tmp_path: Path, encoder: Any) -> None:
    both = index(corpus, tmp_path / "both", ["model", "bm25"], settings=BUILT)
    near = search(both, "river bank", settings=SearchSettings(hnsw=True))
    assert near == search(both, "river bank")
    bm25 = index(corpus, tmp_path / "bm25")
    with pytest.raises(SettingsError, match="hnsw is for a dense index"):
        search(bm25, "snow", settings=SearchSettings(hnsw=True))
    assert encoder.encoded == 5
