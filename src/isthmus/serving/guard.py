"""What every request passes first: host, origin, token and size; and what every answer carries."""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from time import perf_counter
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from isthmus.serving.errors import RefusalError, failure
from isthmus.serving.timing import Measurements

_LOCAL = ("localhost", "127.0.0.1", "::1")
PAGES = ("/", "/docs")
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
        body_bytes: int,
        token: str | None,
        hosts: Iterable[str] | None,
    ) -> None:
        """Where `hosts` are given, requests for other names than these and localhost are refused.

        A page elsewhere could otherwise let its own name lead to this machine.
        """
        self._app = app
        self._measurements = measurements
        self._body_bytes = body_bytes
        self._token = None if token is None else token.encode()
        self._hosts = None if hosts is None else {*_LOCAL, *map(str.lower, hosts)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request, or refuses it; an error that nothing else answered is said here."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun, status, read = perf_counter(), 0, 0

        async def bounded() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > self._body_bytes:
                raise RefusalError(
                    413,
                    f"the request is too large: at most {self._body_bytes:,} bytes are read",
                    "send it in smaller parts",
                )
            return message

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers.update(_HEADERS)
                headers["Cache-Control"] = "no-cache" if scope["path"] in PAGES else "no-store"
            await send(message)

        try:
            self._check(scope["path"], Headers(scope=scope))
            await self._app(scope, bounded, answer)
        except RefusalError as refusal:
            await refusal.answer()(scope, receive, answer)
        except Exception as error:
            if not status:
                await failure(error).answer()(scope, receive, answer)
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
        if path in (*PAGES, "/api/health") or path.startswith(_FILES):
            return  # the empty page, and whether the server answers, need no token
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
                "one that the server printed",
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
