"""Connections that wait, bodies that never end: each is bounded, and so are all of them."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from starlette.testclient import TestClient

import isthmus
from isthmus.serving.connections import Server, connections
from isthmus.serving.settings import Limits

Open = Callable[..., TestClient]
Talk = Callable[[int, uvicorn.Server], Awaitable[None]]
TOKEN = "a token that is long enough"


def serving(limits: Limits, talk: Talk) -> None:
    """Talks to a server whose app reads all of a request, and answers nothing."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            pass
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    async def both() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            options = {**connections(limits), "log_level": "error", "lifespan": "off"}
            server = Server(uvicorn.Config(app, **options))
            task = asyncio.create_task(server.serve([listener]))
            while not server.started:
                await asyncio.sleep(0.001)
            await talk(listener.getsockname()[1], server)
            server.should_exit = True
            await asyncio.wait_for(task, 9)

    asyncio.run(both())


def test_connections_are_counted_and_those_that_wait_are_ended() -> None:
    async def talk(port: int, server: uvicorn.Server) -> None:
        silent, _ = await asyncio.open_connection("127.0.0.1", port)
        half, dripping = await asyncio.open_connection("127.0.0.1", port)
        dripping.write(b"GET / HTTP/1.1\r\nHost: ")
        whole, asking = await asyncio.open_connection("127.0.0.1", port)
        asking.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"204" in await whole.read(999)
        one_more, _ = await asyncio.open_connection("127.0.0.1", port)
        assert await ended(one_more)
        assert not half.at_eof()
        assert await ended(silent)
        assert await ended(half)
        asking.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"204" in await whole.read(999), "one that asked may ask again"

    serving(Limits(connections=3, header_seconds=0.2), talk)


async def ended(reader: asyncio.StreamReader) -> bool:
    try:
        return await asyncio.wait_for(reader.read(1), 5) == b""
    except ConnectionError:
        return True


def test_a_body_without_an_end_does_not_keep_a_server_from_stopping(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("isthmus.serving.connections._LAST", 0.1)
    kept = []  # else its connection would be closed

    async def talk(port: int, server: uvicorn.Server) -> None:
        _, half = await asyncio.open_connection("127.0.0.1", port)
        kept.append(half)
        half.write(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nabc")
        while not server.server_state.tasks:
            await asyncio.sleep(0.001)

    serving(Limits(), talk)


def test_what_needs_no_token_takes_no_body(folders: Path, open_client: Open) -> None:
    client = open_client(folders / "both", token=TOKEN)
    for path in ("/", "/api/health", "/page/page.js", "/page/nothing"):
        assert client.request("GET", path, content=b"x").status_code == 413
        assert client.request("POST", path, content=iter([b"x"])).status_code == 413


def test_bodies_of_all_requests_together_are_bounded(folders: Path) -> None:
    app = isthmus.open_app(folders / "both", settings={"limits": {"buffered_bytes": 150}})
    answers: list[int] = []

    def ask(parts: list[Any]) -> Awaitable[None]:
        async def receive() -> Any:
            part = parts.pop(0)
            return await part() if callable(part) else part

        async def send(message: Any) -> None:
            answers.append(message.get("status", 0))

        scope = {"type": "http", "method": "POST", "path": "/api/encode", "query_string": b""}
        return app({**scope, "headers": [(b"host", b"localhost")]}, receive, send)

    async def talk() -> None:
        gone = asyncio.Event()

        async def disconnected() -> Any:
            await gone.wait()
            return {"type": "http.disconnect"}

        part = {"type": "http.request", "body": b" " * 100, "more_body": True}
        first = asyncio.ensure_future(ask([part, disconnected]))
        await asyncio.sleep(0)
        await ask([part])
        assert answers == [503, 0]
        gone.set()
        await first
        last = {**part, "more_body": False}
        await ask([last])
        assert answers[2:] == [408, 0, 422, 0], "the first one's bytes count no more"

    asyncio.run(talk())
