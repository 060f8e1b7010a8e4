"""Errors as JSON: what is wrong, and what to do; never a traceback."""

from __future__ import annotations

import re
import traceback
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

from isthmus.errors import InputError, IsthmusError, SettingsError, visible
from isthmus.progress import console

# A file or folder of this machine, in quotation marks or without.
_ROOT = r"(?:/|[A-Za-z]:\\)"
_PLACE = re.compile(rf"""(['"]){_ROOT}.*?\1|(?<![\w/:.\\]){_ROOT}[^\s'"]+""")


class Parts(BaseModel):
    """What is wrong, and what to do."""

    what: str = Field(description="what is wrong, with the value and its place")
    fix: str = Field(description="what to do")
    expected: str = Field(description="the choices; empty where there are none")


class ErrorAnswer(BaseModel):
    """The answer to a request that cannot be met."""

    error: Parts


ERRORS: dict[int | str, dict[str, Any]] = {
    422: {"model": ErrorAnswer, "description": "a value of the request cannot be used"},
    "4XX": {"model": ErrorAnswer, "description": "the request cannot be met as it is"},
    "5XX": {"model": ErrorAnswer, "description": "the server cannot meet it now"},
}


class RefusalError(Exception):
    """A request that cannot be met, with the status of its answer."""

    def __init__(self, status: int, what: str, fix: str, expected: str = "") -> None:
        super().__init__(what)
        self.status = status
        self.parts = {"what": what, "fix": fix, "expected": expected}

    def answer(self) -> JSONResponse:
        """The refusal as it is sent."""
        headers = {}
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        if self.status in (408, 413):  # what else comes is not read
            headers["Connection"] = "close"
        if self.status == 503:
            headers["Retry-After"] = "1"
        parts = {name: visible(part) for name, part in self.parts.items()}
        return JSONResponse({"error": parts}, self.status, headers)


def busy(most: str) -> RefusalError:
    """The refusal of one request more than can wait."""
    return RefusalError(
        503,
        f"too many requests wait already: {most}",
        "try again in a moment",
    )


def answer_errors(app: FastAPI) -> None:
    """Lets the app answer every error in its parts."""
    app.add_exception_handler(RefusalError, _refused)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _unknown)
    app.add_exception_handler(IsthmusError, _wrong)
    app.add_exception_handler(Exception, _failed)


def failure(error: BaseException) -> RefusalError:
    """What is said of a bug or a broken disk; all that is known goes to standard error."""
    console.print(
        visible("".join(traceback.format_exception(error))), highlight=False, markup=False
    )
    return RefusalError(
        500,
        "the server failed to answer",
        "try again; if it fails again, the server's own output says more",
    )


async def _refused(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RefusalError)
    return error.answer()


async def _invalid(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = ".".join(map(str, first["loc"])) or request.url.path
    return RefusalError(
        422,
        f"{where}: {first['msg']}",
        f"correct the request: /openapi.json describes {request.url.path}",
    ).answer()


async def _unknown(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    refusal = RefusalError(
        error.status_code,
        f"{request.method} {request.url.path}: {error.detail}",
        "check the address, the method and the body: /openapi.json lists them",
    ).answer()
    refusal.headers.update(error.headers or {})
    return refusal


async def _wrong(request: Request, error: Exception) -> JSONResponse:
    """Input that a layer below refuses; where it names a file, the server's own is at fault."""
    assert isinstance(error, IsthmusError)
    if not isinstance(error, InputError | SettingsError) or _PLACE.search(error.what):
        return failure(error).answer()
    fix, expected = (_PLACE.sub("…", part) for part in (error.fix, error.expected))
    return RefusalError(422, error.what, fix, expected).answer()


async def _failed(request: Request, error: Exception) -> JSONResponse:
    return failure(error).answer()
