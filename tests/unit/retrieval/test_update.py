"""The verbs `add`, `delete` and `merge`, and the writer behind them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from isthmus.config.sealed_json import sealed
from isthmus.errors import InputError, MismatchError
from isthmus.indexes.verification import read_manifest
from isthmus.records import Document, Query
from isthmus.retrieval.hybrid import HybridSearcher
from isthmus.retrieval.searcher import open_searcher
from isthmus.retrieval.verbs.index import index
from isthmus.retrieval.verbs.update import AddSettings, add, delete, merge, open_writer


@pytest.fixture(params=["encoder", "sparse_encoder", "bm25"])
def folder(request: pytest.FixtureRequest, corpus: str, tmp_path: Path) -> Path:
    """A dense, an inverted and a BM25 index of the corpus."""
    if request.param == "bm25":
        return index(corpus, tmp_path / "index")
    request.getfixturevalue(request.param)
    return index(corpus, tmp_path / "index", "model")


@pytest.fixture
def more(tmp_path: Path) -> str:
    file = tmp_path / "more.jsonl"
    texts = {"d1": "thaw", "d9": "glacier melting", "d8": "river delta"}
    lines = [json.dumps({"_id": i, "text": text}) for i, text in texts.items()]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(file)


def found(folder: Path, text: str) -> list[str]:
    (ranking,) = open_searcher(folder).search([Query("q", text)], 10)
    return [i for i, score in ranking if score > 0]


def test_what_is_added_is_found(folder: Path, more: str) -> None:
    assert found(folder, "glacier") == []
    update = add(folder, more)
    assert (update.added, update.replaced, update.deleted, update.documents) == (2, 1, 0, 7)
    assert found(folder, "glacier") == ["d9"]
    assert found(folder, "money") == []  # of d1, which was replaced
    assert found(folder, "thaw") == ["d1"]
    assert set(found(folder, "river")) == {"d0", "d2", "d8"}
    assert open_searcher(folder).documents(["d1", "d9"]) == [
        Document("d1", "thaw"),
        Document("d9", "glacier melting"),
    ]


def test_what_is_deleted_is_not_found(folder: Path) -> None:
    update = delete(folder, ["d0", "d2", "d4"])
    assert (update.deleted, update.documents) == (3, 2)
    assert found(folder, "river") == []
    with pytest.raises(InputError, match="no document 'd0'"):
        open_searcher(folder).documents(["d0"])


def test_ids_that_are_not_there(
    folder: Path, more: str, capsys: pytest.CaptureFixture[str]
) -> None:
    add(folder, more)
    delete(folder, ["d9"])
    told = "7 of 9 ids are not in the index: 'd9', 'n0', 'n1', 'n2', 'n3', …"
    unwanted = ["d9", "d8", "d0", *(f"n{number}" for number in range(6))]
    with pytest.raises(InputError) as refused:
        delete(folder, unwanted)
    assert told in refused.value.what
    assert read_manifest(folder).documents == 6
    assert "d0" in found(folder, "river")
    capsys.readouterr()
    assert delete(folder, unwanted, settings={"problems": "skip"}).documents == 4
    assert told in capsys.readouterr().err
    assert found(folder, "river") == ["d2"]
    with pytest.raises(InputError, match="1 of 1 ids are not in the index: 'd0'"):
        delete(folder, ["d0"])


def test_a_merged_index_is_whole(folder: Path, more: str) -> None:
    add(folder, more)
    delete(folder, ["d0"])
    before = found(folder, "river bank title2")
    assert read_manifest(folder).segments is not None
    assert merge(folder).documents == 6
    assert read_manifest(folder).segments is None
    assert found(folder, "river bank title2") == before
    assert merge(folder).documents == 6  # once more changes nothing


def test_a_writer_in_a_with_block(folder: Path) -> None:
    with open_writer(folder) as writer:
        writer.add([Document("n", "nightfall"), Document("m", "morning")])
        writer.delete(["d0", "m"])
        assert writer.commit().documents == 5
        writer.add([Document("m", "morning")])
    assert found(folder, "nightfall morning") == ["n"]
    writer = open_writer(folder)
    writer.add([Document("m", "morning")])
    writer.close(wait=False)
    assert found(folder, "morning") == []
    open_writer(folder).close()


@pytest.mark.parametrize("folder", ["encoder", "sparse_encoder"], indirect=True)
def test_another_encoder_is_refused(folder: Path, more: str, request: Any) -> None:
    from isthmus import encoders

    found_ = encoders.load_encoder("model")
    found_.fingerprint = "another"
    known = read_manifest(folder).encoder
    assert known is not None
    with pytest.raises(MismatchError, match=f"'{known.name}' has changed since it") as refused:
        add(folder, more)
    assert "(fingerprint another, not words-1)" in refused.value.what
    found_.name = "other"
    with pytest.raises(MismatchError, match=f"by the encoder '{known.name}', this is 'other'"):
        add(folder, more, settings={"model": "other"})
    assert read_manifest(folder).documents == 5


def test_a_hybrid_lives_as_its_parts_do(
    corpus: str, more: str, tmp_path: Path, encoder: Any
) -> None:
    folders = [index(corpus, tmp_path / "dense", "model"), index(corpus, tmp_path / "bm25")]
    for folder in folders:
        add(folder, more)
        delete(folder, ["d0"])
    searchers = [open_searcher(folder) for folder in folders]
    assert searchers[0].has_same_documents(searchers[1])
    (ranking,) = HybridSearcher(searchers).search([Query("q", "river delta")], 2)
    assert ranking.document_ids == ("d8", "d2")


def test_documents_are_encoded_as_the_others_were(
    corpus: str, more: str, tmp_path: Path, encoder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = index(corpus, tmp_path / "index", "model")
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["encoder"]["backend"] = "onnx-int8"
    (folder / "manifest.json").write_text(json.dumps(sealed(manifest)))
    loaded = []

    def load(name: str, settings: Any, backend: str) -> Any:
        loaded.append((name, settings, backend))
        return encoder

    monkeypatch.setattr("isthmus.encoders.load_indexed_encoder", load)
    add(folder, more)
    assert loaded == [("model", encoder.described(), "onnx-int8")]


def test_a_broken_corpus_adds_nothing(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "broken.jsonl"
    file.write_text('{"_id": "x", "text": "river"}\n{"_id": "x", "text": "again"}\n')
    with pytest.raises(InputError, match="duplicate id"):
        add(folder, str(file))
    assert read_manifest(folder).documents == 5
    assert add(folder, str(file), settings=AddSettings(problems="skip")).documents == 6
