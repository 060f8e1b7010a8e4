"""The command `isthmus serve`: an index as an HTTP API and a page."""

from __future__ import annotations

import json
import os
import secrets
import socket
from contextlib import suppress
from importlib.util import find_spec
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING

from isthmus import progress
from isthmus.config import Overrides
from isthmus.config.settings import check_arguments
from isthmus.errors import MissingPackageError, OutputError, SettingsError
from isthmus.serving.settings import ServeSettings

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from isthmus.serving.service import Service

_SHORTEST = 16  # characters of a token


def serve(
    index: str | Path,
    *,
    rerank: str | None = None,
    host: str = "127.0.0.1",
    port: int = 8080,
    token: str | None = None,
    read_write: bool = False,
    judgements: str | Path | None = None,
    settings: ServeSettings | Overrides = None,
) -> None:
    """Serves an index until it is stopped; requests under way are finished.

    Every field is a retriever, and so are all of them fused and, with `rerank`, that re-ranked.
    Elsewhere than on loopback requests need a token, which is made and printed where
    none is given, here or in the variable ISTHMUS_TOKEN.
    """
    chosen = ServeSettings.given(settings, {"rerank.model": rerank})
    token = token or os.environ.get("ISTHMUS_TOKEN")
    if token is None and not is_local(host):
        token = secrets.token_urlsafe(24)
    with _listening(host, port) as listener:  # before anything is loaded
        service = _opened(index, token, read_write, judgements, chosen)
        shown = f"[{host}]" if ":" in host else host
        address = f"http://{shown}:{listener.getsockname()[1]}/"
        welcome = _welcome(service, address, "" if token is None else f"#token={token}")
        _run(_guarded(service, token, is_local(host)), listener, chosen, welcome)


def open_app(
    index: str | Path,
    *,
    token: str | None = None,
    local: bool = True,
    read_write: bool = False,
    judgements: str | Path | None = None,
    settings: ServeSettings | Overrides = None,
) -> ASGIApp:
    """The server as an ASGI app, everything loaded, for a server of one's own or for tests.

    A `local` one answers only requests for names of this machine, and for those of `hosts`.
    """
    chosen = ServeSettings.given(settings)
    return _guarded(_opened(index, token, read_write, judgements, chosen), token, local)


def is_local(host: str) -> bool:
    """Whether only programs on this machine reach a server that listens there."""
    with suppress(ValueError):
        return ip_address(host).is_loopback
    return host == "localhost"


def _opened(
    index: str | Path,
    token: str | None,
    read_write: bool,
    judgements: str | Path | None,
    settings: ServeSettings,
) -> Service:
    check_arguments("serve", {"index": index})
    if token is not None and (len(token) < _SHORTEST or not token.isascii()):
        raise SettingsError(
            f"--token: a token of {len(token)} characters is soon guessed, or cannot be sent",
            f"give {_SHORTEST} ASCII characters or more, or leave it out: one is made and printed",
        )
    for package in ("fastapi", "prometheus_client", "uvicorn"):
        if find_spec(package) is None:
            raise MissingPackageError(package, extra="serve", needed_for="isthmus serve")
    from isthmus.serving.service import Service

    return Service(index, settings, read_write, judgements)


def _guarded(service: Service, token: str | None, local: bool) -> ASGIApp:
    from isthmus.serving.app import application
    from isthmus.serving.guard import Guard

    settings = service.settings
    hosts = settings.hosts if local else None
    limit = settings.limits.body_bytes
    return Guard(application(service), service.measurements, limit, token, hosts)


def _welcome(service: Service, address: str, fragment: str) -> str:
    """What is served, where, and how to stop it."""
    now = service.current
    names = ", ".join(f"{one}{' (default)' * (one == now.default)}" for one in now.by_name)
    page, api = f"{address}{fragment}", f"{address}docs{fragment}"
    if progress.as_json:
        about = {"source": now.source, "documents": len(now.index), "retrievers": [*now.by_name]}
        return json.dumps({"command": "serve", **about, "page": page, "api": api})
    return (
        f"serving {len(now.index):,} documents of {now.source}\n"
        f"  retrievers  {names}\n"
        f"  page        {page}\n"
        f"  API         {api}\n"
        "stop with Ctrl-C"
    )


def _listening(host: str, port: int) -> socket.socket:
    """A socket that connections wait at; a port in use is refused before anything is loaded."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family)
        # Else an answer in two parts waits for the other side to acknowledge the first: 40 ms.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listener
    except (OSError, OverflowError) as error:
        raise OutputError(
            f"nothing can listen at --host {host} --port {port} "
            f"({getattr(error, 'strerror', None) or error})",
            "choose another: --port 0 takes any free one",
        ) from None


def _run(app: ASGIApp, listener: socket.socket, settings: ServeSettings, welcome: str) -> None:
    import uvicorn

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            progress.result(welcome)

    config = uvicorn.Config(
        app,
        http="h11",  # which bounds the size of headers
        ws="none",
        log_level="warning",
        access_log=False,
        server_header=False,
        limit_concurrency=settings.limits.connections,
        timeout_keep_alive=settings.limits.idle_seconds,
        timeout_graceful_shutdown=settings.stop_seconds,
    )
    with suppress(KeyboardInterrupt):  # the signal that stopped it, once more
        Server(config).run(sockets=[listener])
