"""The verb `isthmus serve`: indexes as an HTTP API and a page."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Iterable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from isthmus.config import Overrides
from isthmus.config.settings import check_arguments, several
from isthmus.errors import MissingPackageError, OutputError, SettingsError
from isthmus.progress import result
from isthmus.serving.settings import ServeSettings

if TYPE_CHECKING:
    from starlette.types import ASGIApp

_SHORTEST = 16  # characters of a token


def serve(
    indexes: Iterable[str | Path] | str | Path,
    *,
    hybrid: Iterable[str | Path] | str | Path = (),
    rerank: str | None = None,
    model: str | None = None,
    host: str | None = None,
    port: int | None = None,
    token: str | None = None,
    writable: bool | None = None,
    judgements: str | Path | None = None,
    title: str | None = None,
    settings: ServeSettings | Overrides = None,
) -> None:
    """Serves indexes of one corpus until it is stopped; requests under way then come to their end.

    Every index is a retriever, and so are several fused and, with `rerank`, re-ranked. Elsewhere
    than on loopback requests need a token, which is made and printed where none is given.
    """
    flags = {
        "hybrid": several(hybrid) or None,
        "rerank.model": rerank,
        "model": model,
        "host": host,
        "port": port,
        "writable": writable,
        "judgements": None if judgements is None else str(judgements),
        "title": title,
    }
    chosen = ServeSettings.given(settings, flags)
    _check_packages()
    if token is None and not chosen.is_local:
        token = secrets.token_urlsafe(24)
    with _listening(chosen.host, chosen.port) as listener:  # before anything is loaded
        app = open_app(indexes, token=token, settings=chosen)
        port = listener.getsockname()[1]
        shown = f"[{chosen.host}]" if ":" in chosen.host else chosen.host
        result(f"http://{shown}:{port}/" + ("" if token is None else f"#token={token}"))
        _run(app, listener, chosen)


def open_app(
    indexes: Iterable[str | Path] | str | Path,
    *,
    token: str | None = None,
    settings: ServeSettings | Overrides = None,
) -> ASGIApp:
    """The server as an ASGI app, everything loaded, for a server of one's own or for tests."""
    chosen = ServeSettings.given(settings)
    folders = several(indexes)
    check_arguments("serve", {f"indexes[{n}]": folder for n, folder in enumerate(folders)})
    _check(folders, token)
    _check_packages()
    from isthmus.serving.api import application
    from isthmus.serving.guard import Guard
    from isthmus.serving.service import Service

    service = Service(folders, chosen)
    title = chosen.title or Path(folders[0]).resolve().name
    hosts = chosen.hosts if chosen.is_local else None
    return Guard(application(service, title), service.measurements, chosen.limits, token, hosts)


def _check_packages() -> None:
    for package in ("fastapi", "prometheus_client", "uvicorn"):
        if find_spec(package) is None:
            raise MissingPackageError(package, extra="serve", needed_for="isthmus serve")


def _check(folders: list[str], token: str | None) -> None:
    if not folders:
        raise SettingsError(
            "there is no index to serve",
            "name one: isthmus serve INDEX",
        )
    if token is not None and (len(token) < _SHORTEST or not token.isascii()):
        raise SettingsError(
            f"--token: a token of {len(token)} characters is soon guessed, or cannot be sent",
            f"give {_SHORTEST} ASCII characters or more, or leave it out: one is made and printed",
        )


def _listening(host: str, port: int) -> socket.socket:
    """A socket that connections wait at; a port in use is refused before anything is loaded."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family)
        # Else an answer in two parts waits for the other side to acknowledge the first: 40 ms.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listener
    except OSError as error:
        raise OutputError(
            f"nothing can listen at --host {host} --port {port} ({error.strerror})",
            "choose another: --port 0 takes any free one",
        ) from None


def _run(app: ASGIApp, listener: socket.socket, settings: ServeSettings) -> None:
    import uvicorn

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
        uvicorn.Server(config).run(sockets=[listener])
