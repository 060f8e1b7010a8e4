"""Connections to a server: only so many, and none that waits for ever."""

from __future__ import annotations

import asyncio
import os

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from isthmus.serving.settings import Limits

_LAST = 2.0  # seconds for the rest of a request when the server stops


def connections(limits: Limits) -> type[asyncio.Protocol]:
    """How uvicorn speaks HTTP, within these limits."""
    most = min(limits.connections, _files_allowed() * 3 // 4)  # indexes are opened meanwhile

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

    return Connection


def _files_allowed() -> int:
    if os.name != "posix":
        return 1 << 20
    import resource

    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 1 << 20 if allowed == resource.RLIM_INFINITY else allowed
