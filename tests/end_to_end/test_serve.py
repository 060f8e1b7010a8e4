"""A server as users start it: stopped gently, killed, and searched while its index changes."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

import isthmus
from isthmus.retrieval.change import open_writer

if TYPE_CHECKING:
    from tests.end_to_end.conftest import Commands

TEXTS = {f"d{n}": f"{word} and water" for n, word in enumerate(("river", "snow", "bank", "mill"))}


class Server:
    """A running `isthmus serve`."""

    def __init__(self, commands: Commands, *arguments: str | Path) -> None:
        self._commands = commands
        commands.start("serve", *arguments, "--port", "0")
        for _ in range(600):
            printed = (commands.folder / "stdout").read_text(encoding="utf-8")
            if "stop with" in printed:
                break
            time.sleep(0.05)
        self.printed = printed
        page = next(line for line in printed.splitlines() if "page" in line).split()[-1]
        self.address, _, self.token = page.partition("#token=")
        self.port = int(self.address.rstrip("/").rpartition(":")[2])

    def ask(self, path: str, body: object = None, method: str | None = None) -> Any:
        """The answer to a request, as JSON."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self.token}"}
        request = Request(f"http://127.0.0.1:{self.port}{path}", data, headers, method=method)
        with urlopen(request, timeout=60) as answer:
            return json.load(answer)

    def stop(self) -> Any:
        os.kill(self._commands.child, signal.SIGTERM)
        return self._commands.wait(60)

    def kill(self) -> None:
        self._commands.kill()


@pytest.fixture
def index(tmp_path: Path) -> Path:
    lines = [json.dumps({"_id": i, "text": text}) for i, text in TEXTS.items()]
    (tmp_path / "corpus.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return isthmus.index(tmp_path / "corpus.jsonl", tmp_path / "bm25").folder


def test_a_request_under_way_is_answered_before_the_server_stops(
    commands: Commands, index: Path, tmp_path: Path
) -> None:
    server = Server(commands, index, "--judgements", tmp_path / "judged")
    body = json.dumps({"query": "water", "id": "d1", "grade": 2}).encode()
    head = "POST /api/judgements HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", server.port)) as half:
        half.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body[:10])
        time.sleep(0.3)
        os.kill(commands.child, signal.SIGTERM)
        time.sleep(0.3)
        with pytest.raises(ConnectionError):  # nothing new is taken
            socket.create_connection(("127.0.0.1", server.port), timeout=5).recv(1)
        half.sendall(body[10:])
        half.settimeout(30)
        assert b"200 OK" in half.recv(65536)
    result = commands.wait(60)
    assert result is not None
    assert result.returncode == 0, result.stderr
    assert "Traceback" not in result.stderr
    # Nothing is held any more, and what was judged trains.
    judged = isthmus.open_collection(str(tmp_path / "judged"))
    assert list(judged.judgements("judged").values()) == [{"d1": 2}]
    isthmus.open_index(index).delete(["d0"])


def test_what_was_acknowledged_outlives_a_kill(commands: Commands, index: Path) -> None:
    server = Server(commands, index, "--read-write", "--host", "0.0.0.0")
    assert "4 documents of corpus" in server.printed
    assert "bm25 (default)" in server.printed
    assert server.token
    with pytest.raises(HTTPError, match="401"):
        urlopen(f"http://127.0.0.1:{server.port}/api/about", timeout=60)
    server.ask("/api/documents", {"documents": [{"id": "new", "text": "a volcano"}]})
    assert server.ask("/api/documents?id=d0", method="DELETE")["documents"] == 4
    server.kill()
    assert [hit.id for hit in isthmus.open_index(index).search("volcano")] == ["new"]
    assert "d0" not in {hit.id for hit in isthmus.open_index(index).search("water")}
    again = Server(commands, index, "--read-write", "--set", "check_seconds=0.05")
    assert [hit["id"] for hit in again.ask("/api/search?q=volcano")["hits"]] == ["new"]
    assert again.stop().returncode == 0


def test_commits_of_others_are_taken_up_and_no_request_is_lost(
    commands: Commands, index: Path, tmp_path: Path
) -> None:
    server = Server(commands, index, "--set", "check_seconds=0.02")
    more = tmp_path / "more.jsonl"
    for number in range(8):
        record = json.dumps({"_id": f"n{number}", "text": f"word{number} water"})
        more.write_text(f"{record}\n", encoding="utf-8")
        isthmus.open_index(index).add(more)
        if number == 4:
            with open_writer(index) as writer:
                writer.merge(everything=True)
        for _ in range(500):  # every one of which must be answered
            hits = server.ask(f"/api/search?q=word{number}+water&k=20")["hits"]
            if hits[0]["id"] == f"n{number}":
                break
        assert hits[0]["id"] == f"n{number}"
        assert len(hits) == len(TEXTS) + number + 1
    assert server.stop().returncode == 0
