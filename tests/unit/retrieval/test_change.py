"""What is added, deleted and brought up to date with its source, with the encoders of the index."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.index_bytes import verify

from isthmus.collections import open_corpus
from isthmus.config.sealed_json import sealed
from isthmus.errors import InputError, MismatchError
from isthmus.indexes.manifest import read_manifest
from isthmus.records import Document, Query
from isthmus.retrieval.change import AddSettings, add, delete, open_writer, sync
from isthmus.retrieval.index import index
from isthmus.retrieval.searcher import open_searcher


def found(folder: Path, text: str) -> list[str]:
    (ranking,) = open_searcher(folder, use="bm25").search([Query("q", text)], 10)
    (near,) = open_searcher(folder, use="dense").search([Query("q", text)], 10)
    some = [i for i, score in near if score > 0]
    assert sorted(some) == sorted(ranking.document_ids)
    return some


def test_what_is_added_is_found_and_what_is_deleted_is_not(folder: Path, more: str) -> None:
    update = add(folder, more)
    assert (update.added, update.replaced, update.deleted, update.documents) == (2, 1, 0, 7)
    assert found(folder, "glacier") == ["d9"]
    assert found(folder, "money") == []  # of d1, which was replaced
    assert open_searcher(folder).index.documents(["d1", "d9"]) == [
        Document("d1", "thaw"),
        Document("d9", "glacier melting"),
    ]
    update = delete(folder, ["d0", "d2", "d4"])
    assert (update.deleted, update.documents) == (3, 4)
    assert found(folder, "river") == ["d8"]
    with pytest.raises(InputError, match="no document 'd0'"):
        open_searcher(folder).documents(["d0"])
    verify(folder)


def test_ids_that_are_not_there(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = "6 of 7 ids are not in the index: 'n0', 'n1', 'n2', 'n3', 'n4', …"
    unwanted = ["d0", *(f"n{number}" for number in range(6))]
    with pytest.raises(InputError) as refused:
        delete(folder, unwanted)
    assert told in refused.value.what
    assert "d0" in found(folder, "river")
    capsys.readouterr()
    assert delete(folder, unwanted, settings={"problems": "skip"}).documents == 4
    assert told in capsys.readouterr().err


def test_a_writer_in_a_with_block(folder: Path) -> None:
    with open_writer(folder) as writer:
        writer.add([Document("n", "twice"), Document("n", "nightfall"), Document("m", "morning")])
        writer.delete(["d0", "m"])
        assert writer.commit().documents == 5
        writer.add([Document("m", "morning")])
    assert found(folder, "nightfall morning twice") == ["n"]


def test_another_encoder_is_refused(folder: Path, more: str, encoder: Any) -> None:
    encoder.fingerprint = "another"
    with pytest.raises(MismatchError, match="'model' has changed since it") as refused:
        add(folder, more)
    assert "(fingerprint another, not words-1)" in refused.value.what
    with pytest.raises(MismatchError, match="by the encoder 'model', this is 'words'"):
        add(folder, more, settings={"model": "words"})
    assert read_manifest(folder).documents == 5


def test_documents_are_encoded_as_the_others_were(
    folder: Path, more: str, encoder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = json.loads((folder / "manifest.json").read_text())
    for name in ("dense", "tokens"):
        values["fields"][name]["encoder"]["backend"] = "onnx-int8"
    (folder / "manifest.json").write_text(json.dumps(sealed(values)))
    loaded = []

    def load(name: str, settings: Any, backend: str) -> Any:
        loaded.append((name, settings, backend))
        return encoder

    monkeypatch.setattr("isthmus.encoders.load_indexed_encoder", load)
    add(folder, more)
    assert loaded == [("model", encoder.described(), "onnx-int8")], "once for both fields"
    verify(folder)


def test_a_broken_corpus_adds_nothing(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "broken.jsonl"
    file.write_text('{"_id": "x", "text": "river"}\n{"_id": "x", "text": "again"}\n')
    with pytest.raises(InputError, match="duplicate id"):
        add(folder, str(file))
    assert read_manifest(folder).documents == 5
    assert add(folder, str(file), settings=AddSettings(problems="skip")).documents == 6


def write(file: Path, records: list[dict[str, Any]]) -> str:
    file.write_text("".join(f"{json.dumps(one)}\n" for one in records))
    return str(file)


def test_sync_decides_by_text_title_and_metadata(tmp_path: Path, encoder: Any) -> None:
    records = [
        {"_id": f"d{n}", "title": f"t{n}", "text": f"text{n}", "year": 2000 + n} for n in range(6)
    ]
    source = write(tmp_path / "c.jsonl", records)
    folder = index(source, tmp_path / "index", "model")
    assert not sync(folder, source)
    records[1]["text"], records[2]["title"], records[3]["year"] = "other", "other", 1999
    write(tmp_path / "c.jsonl", [*records[:5], {"_id": "new", "text": "new"}])
    would = sync(folder, source, dry_run=True)
    assert read_manifest(folder).documents == 6
    encoder.read.clear()
    done = sync(folder, source, compact=True)
    assert (done.added, done.changed, done.deleted) == (("new",), ("d1", "d2", "d3"), ("d5",))
    assert (would.added, would.changed, would.deleted) == (done.added, done.changed, done.deleted)
    assert (done.unchanged, encoder.encoded) == (2, 4)
    manifest = verify(folder)
    assert len(manifest.segments) == 1
    assert manifest.corpus.fingerprint == open_corpus(source).fingerprint()
    index(source, folder, "model")  # which is the same index now
    document = open_searcher(folder).index.document("d3")
    assert document is not None
    assert document.metadata == {"year": 1999}


def test_what_could_not_be_read_stays_and_nothing_is_taken_for_another_corpus(
    tmp_path: Path, corpus: str, folder: Path
) -> None:
    before = read_manifest(folder)
    lines = Path(corpus).read_text().splitlines()
    broken = tmp_path / "broken.jsonl"
    broken.write_text("\n".join([*lines[:3], "{"]))
    done = sync(folder, str(broken), settings={"problems": "skip"})
    assert (done.deleted, done.undecided) == ((), ("d3", "d4"))
    assert read_manifest(folder) == before
    with pytest.raises(MismatchError, match="not one of the 5 documents"):
        sync(folder, write(tmp_path / "others.jsonl", [{"_id": "x", "text": "river"}]))
