"""Errors as JSON, in the parts that every error of isthmus has; never a traceback."""

from __future__ import annotations

import re
import traceback
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

from isthmus.errors import InputError, IsthmusError, SettingsError, visible
from isthmus.progress import console, notice

# A file or folder of this machine, in quotation marks or without.
_ROOT = r"(?:/|[A-Za-z]:\\)"
_PLACE = re.compile(rf"""(['"]){_ROOT}.*?\1|(?<![\w/:.\\]){_ROOT}[^\s'"]+""")


class Parts(BaseModel):
    """What is wrong, where, what would be right, and what to do."""

    what: str = Field(description="what is wrong, with the value")
    where: str = Field(description="the parameter or the address")
    why: str = Field(description="what is allowed")
    fix: str = Field(description="what to do")


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

    def __init__(self, status: int, what: str, *, where: str, why: str, fix: str) -> None:
        super().__init__(what)
        self.status = status
        self.parts = {"what": what, "where": where, "why": why, "fix": fix}

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
        "too many requests wait already",
        where="server",
        why=most,
        fix="try again in a moment",
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
        where=type(error).__name__,
        why="requests as /openapi.json describes them, which this may well be",
        fix="try again; if it fails again, the server's own output says more",
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
        where=where,
        why=f"what /openapi.json says of {request.url.path}",
        fix="correct the request",
    ).answer()


async def _unknown(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    refusal = RefusalError(
        error.status_code,
        str(error.detail),
        where=f"{request.method} {request.url.path}",
        why="the addresses and methods of /openapi.json",
        fix="check the address, the method and the body",
    ).answer()
    refusal.headers.update(error.headers or {})
    return refusal


async def _wrong(request: Request, error: Exception) -> JSONResponse:
    """Input that a layer below refuses; where its own files fail, the server is to blame."""
    assert isinstance(error, IsthmusError)
    if not isinstance(error, InputError | SettingsError) or Path(error.where).is_absolute():
        return failure(error).answer()
    what, why, fix = (_PLACE.sub("…", one) for one in (error.what, error.allowed, error.remedy))
    if what != error.what:
        notice(f"refused: {error.what}")
    where = f"{request.method} {request.url.path}"
    return RefusalError(422, what, where=where, why=why, fix=fix).answer()


async def _failed(request: Request, error: Exception) -> JSONResponse:
    return failure(error).answer()
