"""Indexes that change while they are served: by the server, by others, and not as they should."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from tests.factories import write_corpus

import isthmus
from isthmus.errors import OutputError
from isthmus.indexes.filters import parse_text
from isthmus.indexes.manifest import read_manifest
from isthmus.indexes.writer import TOGETHER
from isthmus.inspection.explain import explained
from isthmus.serving.guard import Guard
from isthmus.serving.serve import open_app
from isthmus.serving.service import Service
from isthmus.serving.settings import ServeSettings

Open = Callable[..., TestClient]
NEW = {"id": "fire", "title": "Volcano", "text": "A volcano erupts beside the river."}


def ids(client: TestClient, query: str, retriever: str = "bm25") -> list[str]:
    found = client.get("/api/search", params={"q": query, "use": retriever}).json()
    return [hit["id"] for hit in found["hits"]]


def test_documents_are_searched_once_they_are_acknowledged(own: Path, open_client: Open) -> None:
    client = open_client(own, read_write=True, settings={"check_seconds": 0.0})
    answer = client.post("/api/documents", json={"documents": [NEW]})
    assert answer.json() == {"added": 1, "replaced": 0, "deleted": 0, "documents": 7}
    assert ids(client, "volcano") == ["fire"]
    assert "fire" in ids(client, "volcano", "fused")
    assert isthmus.open_index(own).search("volcano", k=1)[0].id == "fire"  # and on the disk
    changed = {**NEW, "text": "A glacier."}
    answer = client.post("/api/documents", json={"documents": [changed]})
    assert answer.json()["replaced"] == 1
    assert client.get("/api/document?id=fire").json()["text"] == "A glacier."
    assert client.delete("/api/documents?id=fire").json()["documents"] == 6
    assert ids(client, "volcano") == []
    assert client.delete("/api/documents?id=fire").status_code == 404
    assert client.get("/api/document?id=fire").status_code == 404


def test_a_change_that_fails_leaves_nothing_behind(
    own: Path, open_client: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = open_client(own, read_write=True)
    empty = {"documents": [NEW, {"id": "empty", "text": " "}]}
    assert client.post("/api/documents", json=empty).status_code == 422
    with monkeypatch.context() as patch:
        patch.setattr("isthmus.retrieval.change.Writer.commit", _no_space)
        answer = client.post("/api/documents", json={"documents": [NEW]})
    assert answer.status_code == 500
    assert "space" not in answer.text
    assert ids(client, "volcano") == []
    snowy = {"id": "snowy", "text": "a blizzard"}
    assert client.post("/api/documents", json={"documents": [snowy]}).json()["documents"] == 7
    assert ids(client, "volcano") == []
    assert ids(client, "blizzard") == ["snowy"]


def _no_space(_: object) -> None:
    raise OutputError("no space", "free some")


def test_a_writable_server_is_the_one_writer_until_it_ends(own: Path, tmp_path: Path) -> None:
    more = write_corpus(tmp_path / "more.jsonl", {"m": "more"})
    server = TestClient(open_app(own, read_write=True))
    with server, pytest.raises(OutputError, match="another process is writing"):
        isthmus.open_index(own).add(str(more))
    assert isthmus.open_index(own).add(str(more)).documents == 7


def test_an_index_that_was_replaced_takes_documents_and_a_missing_one_says_so(
    own: Path, folders: Path, open_client: Open
) -> None:
    client = open_client(own, read_write=True, settings={"check_seconds": 0.0})
    other = own.with_name("other")
    own.rename(other)
    answer = client.post("/api/documents", json={"documents": [NEW]})
    assert (answer.status_code, str(own.parent) in answer.text) == (503, False)
    shutil.copytree(folders / "both", own)
    # Its state has the number that the next one of before had.
    isthmus.open_index(own).delete("river")
    answer = client.post("/api/documents", json={"documents": [NEW]})
    assert answer.json()["documents"] == 6
    assert ids(client, "volcano") == ["fire"]
    shutil.rmtree(own)
    shutil.copytree(folders / "both", own)
    isthmus.open_index(own).delete(["river", "snow"])
    isthmus.open_index(own).delete(["money"])
    answer = client.post("/api/documents", json={"documents": [NEW]})
    assert answer.json()["documents"] == 4


def test_what_others_commit_is_taken_up_and_requests_keep_what_they_began_with(
    own: Path, tmp_path: Path
) -> None:
    service = Service(own, ServeSettings(check_seconds=0.0))
    before = service.current
    assert service.refresh() is before
    more = write_corpus(tmp_path / "more.jsonl", {"fire": "volcano"})
    isthmus.open_index(own).add(str(more))
    isthmus.open_index(own).delete("river")
    after = service.refresh()
    assert after is service.current
    assert after.index.document("fire") is not None
    assert after.index.document("river") is None
    assert len(after.index) == 6
    # Its files have no names any more, and it still answers.
    assert before.index.document("river") is not None
    assert before.index.document("fire") is None
    assert before.index.masks(parse_text("year=2019"))[-1].any()
    for offer in before.by_name.values():
        assert explained(offer.retriever, "river bank", "river").score
    searchers = [served.retriever for now in (before, after) for served in now.by_name.values()]
    encoders = {id(one.encoders["dense"]) for one in searchers}  # type: ignore[attr-defined]
    assert len(encoders) == 1, "the encoder was loaded again"
    service.close()


def test_an_index_that_cannot_be_opened_is_not_taken_up(
    own: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    service = Service(own, ServeSettings(check_seconds=0.0))
    before, manifest = service.current, own / "manifest.json"
    whole = manifest.read_bytes()
    manifest.write_bytes(whole.replace(b"1.2", b"1.3"))
    assert service.refresh() is service.refresh() is before
    assert capfd.readouterr().err.count("that of before is served") == 1
    manifest.write_bytes(whole)
    isthmus.open_index(own).delete("river")
    assert len(service.refresh().index) == 5
    text = service.measurements.text().decode()
    assert 'isthmus_openings_total{outcome="failed"} 1.0' in text
    service.close()


def test_documents_are_added_with_metadata_and_segments_stay_few(
    own: Path, open_client: Open
) -> None:
    client = open_client(own, read_write=True, settings={"check_seconds": 0.0})
    for number in range(2 * TOGETHER):
        new = {**NEW, "id": f"fire{number}", "year": 1900 + number, "metadata": {"lang": "is"}}
        assert client.post("/api/documents", json={"documents": [new]}).status_code == 200
        asked = {"q": "volcano", "filter": "year<2000 lang=is", "k": 100}
        found = client.get("/api/search", params=asked).json()["hits"]
        assert [hit["metadata"] for hit in found if hit["id"] == f"fire{number}"] == [
            {"lang": "is", "year": 1900 + number}
        ]
        assert len(found) == number + 1
    assert client.get("/api/document?id=fire3").json()["metadata"]["year"] == 1903
    assert client.get("/api/about").json()["documents"] == 6 + 2 * TOGETHER
    assert len(read_manifest(own).segments) < TOGETHER


def test_a_running_server_looks_by_itself(own: Path, tmp_path: Path) -> None:
    app = open_app(own, settings={"check_seconds": 0.01})
    assert isinstance(app, Guard)
    with TestClient(app, base_url="http://localhost") as client:
        isthmus.open_index(own).delete("river")
        for _ in range(1000):
            if client.get("/api/about").json()["documents"] == 5:
                break
        assert "river" not in ids(client, "river")
