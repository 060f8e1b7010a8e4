"""Connections to a server: only so many, and none that waits for ever."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from isthmus.serving.settings import Limits

_MANY = 1 << 20  # files, where there is no limit
_QUEUE = 2048  # connections that wait to be taken
_INDEXES = 64  # files
_LAST = 2.0  # seconds for the rest of a request when the server stops


def connections(limits: Limits) -> dict[str, Any]:
    """The options of uvicorn that keep its connections within these limits."""
    left = _files_left()
    # The others are for indexes, which are opened anew when they change.
    most = min(limits.connections, max(left // 4, left // 2 - _INDEXES))
    # So many are taken at once, and some rounds of them before the first can be refused.
    together = min(_QUEUE, max(1, left // 16))

    class Connection(H11Protocol):
        _late: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            if len(self.connections) > most:
                transport.abort()
            else:
                self._expect()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.conn.their_state is h11.IDLE:  # all of the headers are not there yet
                self._expect()
            else:
                self._expect_no_longer()

        def connection_lost(self, exc: Exception | None) -> None:
            self._expect_no_longer()
            super().connection_lost(exc)

        def shutdown(self) -> None:
            super().shutdown()
            self.loop.call_later(_LAST, self._end_unfinished)

        def _end_unfinished(self) -> None:
            if self.cycle is not None and self.cycle.more_body:
                self.transport.abort()

        def _expect(self) -> None:
            if self._late is None:
                end = self.transport.abort
                self._late = self.loop.call_later(limits.header_seconds, end)

        def _expect_no_longer(self) -> None:
            if self._late is not None:
                self._late.cancel()
                self._late = None

    return {"http": Connection, "backlog": together}


class Server(uvicorn.Server):
    """A server at which more connections wait than it takes at once."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listens, and lets others wait."""
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(_QUEUE)


def _files_left() -> int:
    """How many more files the system lets this process open."""
    if os.name != "posix":
        return _MANY
    import resource

    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if allowed == resource.RLIM_INFINITY:
        return _MANY
    return max(2, allowed - len(list(Path("/dev/fd").iterdir())))
