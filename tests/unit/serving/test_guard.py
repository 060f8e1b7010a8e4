"""Who may ask for what: names of the server, pages elsewhere, tokens, sizes, headers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

import isthmus
from isthmus.errors import InputError, OutputError, SettingsError
from isthmus.serving.serve import is_local, open_app

Open = Callable[..., TestClient]
TOKEN = "a token that is long enough"


@pytest.mark.parametrize("host", ["localhost:8080", "127.0.0.1", "[::1]:80", "LOCALHOST"])
def test_names_of_this_machine_are_answered(client: TestClient, host: str) -> None:
    assert client.get("/api/about", headers={"host": host}).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "[::1", "", "10.0.0.1"])
def test_other_names_that_lead_here_are_refused(client: TestClient, host: str) -> None:
    for path in ("/", "/api/search?q=river", "/metrics"):
        answer = client.get(path, headers={"host": host})
        assert answer.status_code == 421
        assert "this server is not" in answer.json()["error"]["what"]


def test_a_proxy_s_name_can_be_given(folders: Path, open_client: Open) -> None:
    client = open_client(folders / "both", settings={"hosts": ["search.example"]})
    assert client.get("/api/about", headers={"host": "search.example"}).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "http://localhost:9999"},
        {"origin": "null"},
        {"origin": "http://["},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
def test_pages_of_other_sites_are_refused(client: TestClient, headers: dict[str, str]) -> None:
    assert client.get("/api/search?q=river", headers=headers).status_code == 403
    body = {"documents": [{"id": "a", "text": "a"}]}
    assert client.post("/api/documents", json=body, headers=headers).status_code == 403
    assert client.get("/", headers=headers).status_code == 200  # a link to the page
    own = {"origin": "http://localhost", "sec-fetch-site": "same-origin"}
    assert client.get("/api/search?q=river", headers=own).status_code == 200


def test_a_token_is_needed_for_all_but_the_empty_page(folders: Path, open_client: Open) -> None:
    client = open_client(folders / "both", token=TOKEN, local=False)
    for given in ({}, {"authorization": f"Bearer {TOKEN[:-1]}"}, {"authorization": TOKEN}):
        for path in ("/api/about", "/api/search?q=river", "/metrics", "/openapi.json"):
            answer = client.get(path, headers=given)
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"] == "Bearer"
    right = {"authorization": f"Bearer {TOKEN}", "host": "10.1.2.3:8080"}
    assert client.get("/api/about", headers=right).status_code == 200
    for path in ("/", "/docs", "/api/health"):
        assert client.get(path).status_code == 200


def test_what_is_too_large_is_refused_before_it_is_read(own: Path, open_client: Open) -> None:
    client = open_client(own, read_write=True, settings={"limits": {"body_bytes": 1000}})

    def chunks() -> Iterator[bytes]:
        for _ in range(100):
            yield b" " * 100

    large = client.post("/api/documents", content=b" " * 1001)
    assert (large.status_code, large.headers["connection"]) == (413, "close")
    assert client.post("/api/documents", content=chunks()).status_code == 413
    body = {"documents": [{"id": "new", "text": "a river"}]}
    assert client.post("/api/documents", json=body).status_code == 200


@pytest.mark.parametrize(
    "path", ["/", "/docs", "/api/about", "/api/nothing", "/api/search?q=river"]
)
def test_every_answer_has_the_headers_of_a_careful_server(client: TestClient, path: str) -> None:
    headers = client.get(path).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cache-control"] == ("no-cache" if path in ("/", "/docs") else "no-store")


@pytest.mark.parametrize(
    ("host", "local"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("127.9.9.9", True)]
    + [(host, False) for host in ("0.0.0.0", "::", "192.168.1.1", "example.org")],
)
def test_only_loopback_does_without_a_token(host: str, local: bool) -> None:
    assert is_local(host) is local


def test_a_server_that_cannot_be_started_says_why(folders: Path) -> None:
    with pytest.raises(SettingsError, match="is soon guessed"):
        open_app(folders / "both", token="short")
    with pytest.raises(OutputError, match="nothing can listen"):
        isthmus.serve(folders / "both", host="192.0.2.1")
    with pytest.raises(InputError, match="there is no index"):
        open_app(folders / "nowhere")
