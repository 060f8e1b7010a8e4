"""What every request passes first: host, origin, token and size; and what every answer carries."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Iterable
from time import perf_counter
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from isthmus.serving.measurements import Measurements
from isthmus.serving.refusals import RefusalError, busy, failure
from isthmus.serving.settings import Limits

_LOCAL = ("localhost", "127.0.0.1", "::1")
_OPEN = ("/", "/api/health")
_FILES = "/page/"
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; require-trusted-types-for 'script'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class Guard:
    """The app, for requests to this server, from its own page or from no page, with its token."""

    def __init__(
        self,
        app: ASGIApp,
        measurements: Measurements,
        limits: Limits,
        token: str | None,
        hosts: Iterable[str] | None,
    ) -> None:
        """Where `hosts` are given, requests for other names than these and localhost are refused.

        A page elsewhere could otherwise let its own name lead to this machine.
        """
        self._app = app
        self._measurements = measurements
        self._limits = limits
        self._buffered = 0  # bytes of bodies, of all requests under way
        self._token = None if token is None else token.encode()
        self._hosts = None if hosts is None else {*_LOCAL, *map(str.lower, hosts)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request, or refuses it; an error that nothing else answered is said here."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun, status, body = perf_counter(), 0, bytearray()

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                _complete(message, scope["path"])
            await send(message)

        try:
            self._check(scope["path"], Headers(scope=scope))
            await self._app(scope, await self._read(scope, receive, body), answer)
        except RefusalError as refusal:
            await refusal.answer()(scope, receive, answer)
        except Exception as error:
            if not status:
                await failure(error).answer()(scope, receive, answer)
        finally:
            self._buffered -= len(body)
        path = getattr(scope.get("route"), "path", "other")  # one that there is
        self._measurements.requests.labels(path, status).inc()
        self._measurements.seconds.labels(path).observe(perf_counter() - begun)

    def _check(self, path: str, headers: Headers) -> None:
        host = _name(headers.get("host", ""))
        if self._hosts is not None and host not in self._hosts:
            raise RefusalError(
                421,
                f"this server is not {host!r}",
                "use one of these names, or start it with --set 'hosts=[\"NAME\"]'",
                ", ".join(sorted(self._hosts)),
            )
        if _is_open(path):
            return
        origin = headers.get("origin")
        elsewhere = headers.get("sec-fetch-site", "none") not in ("none", "same-origin")
        if elsewhere or (origin is not None and not _is_own(origin, headers.get("host"))):
            raise RefusalError(
                403,
                "a page of another site sent this request",
                "open this server's own page, or send it from a program",
            )
        given = headers.get("authorization", "").encode()
        if self._token is not None and not hmac.compare_digest(given, b"Bearer " + self._token):
            raise RefusalError(
                401,
                "the token is missing or wrong",
                "send the header Authorization: Bearer TOKEN, with the token of --token or the "
                "one printed at the start",
            )

    async def _read(self, scope: Scope, receive: Receive, body: bytearray) -> Receive:
        """A request whose body has come whole, within its limits."""
        headers, more = Headers(scope=scope), True
        declared = headers.get("content-length", "0")
        most = 0 if _is_open(scope["path"]) else self._limits.body_bytes
        if not declared.isascii() or not declared.isdigit() or len(declared) > 18:
            raise _too_large(most)
        if int(declared) > most or (not most and "transfer-encoding" in headers):
            raise _too_large(most)
        try:
            async with asyncio.timeout(self._limits.body_seconds):
                while more:
                    message = await receive()
                    if message["type"] != "http.request":
                        raise TimeoutError
                    part = message.get("body", b"")
                    body += part
                    self._buffered += len(part)
                    more = message.get("more_body", False)
                    if len(body) > most:
                        raise _too_large(most)
                    if self._buffered > self._limits.buffered_bytes:
                        raise busy(f"{self._limits.buffered_bytes:,} bytes in all")
        except TimeoutError:
            raise RefusalError(
                408,
                f"the request was not complete after {self._limits.body_seconds:g} seconds",
                "send it again, in smaller parts",
            ) from None
        given = False

        async def whole() -> Message:
            nonlocal given
            if given:
                return await receive()
            given = True
            return {"type": "http.request", "body": bytes(body), "more_body": False}

        return whole


def _is_open(path: str) -> bool:
    """Whether no token is needed: for the empty page, and to see whether the server answers."""
    return path in _OPEN or path.startswith(_FILES)


def _too_large(most: int) -> RefusalError:
    return RefusalError(
        413,
        f"the request is too large: at most {most:,} bytes are read",
        "send it in smaller parts" if most else "send it without a body",
    )


def _name(host: str) -> str:
    """A Host header without its port; empty where it is none."""
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""


def _is_own(origin: str, host: str | None) -> bool:
    try:
        return urlsplit(origin).netloc == host
    except ValueError:
        return False


def _complete(message: Message, path: str) -> None:
    headers = MutableHeaders(scope=message)
    headers.update(_HEADERS)
    headers["Cache-Control"] = "no-store" if path not in _OPEN[:1] else "no-cache"
