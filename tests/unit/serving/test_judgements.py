"""Judgements: read by what reads judged collections, kept through a kill, never mixed up."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

import isthmus
from isthmus.collections.trec import read_judgements
from isthmus.errors import InputError, OutputError
from isthmus.serving.judgements import JudgementFolder

Open = Callable[..., TestClient]


def test_judgements_are_a_split_that_evaluate_reads(
    folders: Path, tmp_path: Path, open_client: Open
) -> None:
    judged = tmp_path / "judged"
    client = open_client(folders / "both", judgements=str(judged))

    def judge(query: str, document: str, grade: int | None) -> Any:
        body = {"query": query, "id": document, "grade": grade}
        return client.post("/api/judgements", json=body)

    assert judge("river bank", "river", 3).json() == {"grades": {"river": 3}}
    judge("river  bank ", "money", 1)
    judge("river bank", "snow", 2)
    judge("river bank", "snow", None)
    judge("cold winter", "snow", 2)
    assert judge("river bank", "nowhere", 2).status_code == 404
    assert judge("river bank", "river", 4).status_code == 422
    found = client.get("/api/judgements", params={"q": "river bank"}).json()["grades"]
    assert found == {"river": 3, "money": 1}
    collection = isthmus.open_collection(str(judged))
    assert collection.splits() == ["judged"]
    texts = {query.id: query.text for query in collection.queries()}
    graded = {texts[i]: grades for i, grades in collection.judgements("judged").items()}
    assert graded == {"river bank": {"river": 3, "money": 1}, "cold winter": {"snow": 2}}
    report = isthmus.evaluate(str(judged), ["bm25"], measures="RR@10")
    assert "2 judged queries" in str(report)


def test_the_judgement_of_a_deleted_document_can_be_taken_back(
    own: Path, tmp_path: Path, open_client: Open
) -> None:
    client = open_client(own, read_write=True, judgements=str(tmp_path / "judged"))
    body = {"query": "river", "id": "river", "grade": 2}
    assert client.post("/api/judgements", json=body).status_code == 200
    assert client.delete("/api/documents?id=river").status_code == 200
    assert client.post("/api/judgements", json=body).status_code == 404
    answer = client.post("/api/judgements", json={**body, "grade": None})
    assert answer.json() == {"grades": {}}


def test_documents_added_later_are_kept_beside_their_judgements(
    own: Path, tmp_path: Path, open_client: Open
) -> None:
    judged = tmp_path / "judged"
    client = open_client(own, read_write=True, judgements=str(judged))
    before = (judged / "corpus.jsonl").read_text(encoding="utf-8")
    new = {"id": "fire", "title": "Volcano", "text": "Fire.", "year": 79}
    assert client.post("/api/documents", json={"documents": [new]}).status_code == 200
    for name in ("river", "fire", "fire"):
        body = {"query": "volcano", "id": name, "grade": 2}
        assert client.post("/api/judgements", json=body).status_code == 200
    kept = '{"_id": "fire", "title": "Volcano", "text": "Fire.", "metadata": {"year": 79}}\n'
    assert (judged / "corpus.jsonl").read_text(encoding="utf-8") == before + kept


def test_what_was_in_the_folder_stays_and_a_second_server_is_refused(tmp_path: Path) -> None:
    mine = '{"_id": "q1", "text": "river bank", "metadata": {"a": 1}}\n{"_id": "q2", "text": "x"}'
    (tmp_path / "queries.jsonl").write_text(mine, encoding="utf-8")
    (tmp_path / "corpus.jsonl").write_text("{}", encoding="utf-8")
    folder = JudgementFolder(tmp_path)
    folder.add_corpus([], 0)
    assert (tmp_path / "corpus.jsonl").read_text(encoding="utf-8") == "{}"
    with pytest.raises(OutputError, match="another process is writing"):
        JudgementFolder(tmp_path)
    folder.judge("river bank", "d1", 1)
    folder.judge("new query", "d 2", 0)
    lines = (tmp_path / "queries.jsonl").read_text(encoding="utf-8").splitlines()
    assert lines[:2] == mine.splitlines()
    assert json.loads(lines[2])["text"] == "new query"
    new = json.loads(lines[2])["_id"]
    assert read_judgements(tmp_path / "qrels" / "judged.tsv") == {"q1": {"d1": 1}, new: {"d 2": 0}}
    with pytest.raises(InputError, match="cannot be written to a file"):
        folder.judge("river bank", "a\tb", 1)
    folder.close()
    again = JudgementFolder(tmp_path)
    assert again.of("new query") == {"d 2": 0}
    again.close()


def test_acknowledged_judgements_survive_a_kill(tmp_path: Path) -> None:
    receive, send = multiprocessing.Pipe(duplex=False)
    child = multiprocessing.get_context("fork").Process(target=_judge, args=(tmp_path, send))
    child.start()
    send.close()
    for _ in range(40):
        last = receive.recv()
    assert child.pid is not None
    os.kill(child.pid, signal.SIGKILL)
    child.join()
    while receive.poll():
        try:
            last = receive.recv()
        except EOFError:
            break
    folder = JudgementFolder(tmp_path)
    for number in range(last + 1):
        assert folder.of(f"query {number}") == {f"d{number}": number % 4}
    folder.close()


def _judge(place: Path, send: Any) -> None:
    folder = JudgementFolder(place)
    for number in range(100_000):
        folder.judge(f"query {number}", f"d{number}", number % 4)
        send.send(number)
