"""Errors as JSON: what is wrong, and what to do; never a traceback."""

from __future__ import annotations

import re
import traceback
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException as AnyHTTPException

from isthmus.errors import InputError, IsthmusError, SettingsError, shown, visible
from isthmus.progress import console

# A file or folder of this machine, in quotation marks or without.
_ROOT = r"(?:/|[A-Za-z]:\\)"
_PLACE = re.compile(rf"""(['"]){_ROOT}.*?\1|(?<![\w/:.\\]){_ROOT}[^\s'"]+""")
_SUBJECT = re.compile(r"^(Input|String|List|Value error,) ")  # of pydantic's sentences
_HEADERS = {401: {"WWW-Authenticate": "Bearer"}, 413: {"Connection": "close"}}


class Parts(BaseModel):
    """What is wrong, and what to do."""

    what: str = Field(description="What is wrong, with the value and its place.")
    fix: str = Field(description="What to do.")
    expected: str = Field("", description="The choices, where there are any.")


class ErrorAnswer(BaseModel):
    """The answer to a request that cannot be met."""

    error: Parts


ERRORS: dict[int | str, dict[str, Any]] = {
    422: {"model": ErrorAnswer, "description": "A value of the request cannot be used."},
    "4XX": {"model": ErrorAnswer, "description": "The request cannot be met as it is."},
    "5XX": {"model": ErrorAnswer, "description": "The server cannot meet it now."},
}


class RefusalError(HTTPException):
    """A request that cannot be met, with the status of its answer."""

    def __init__(self, status: int, what: str, fix: str, expected: str = "") -> None:
        super().__init__(status, what, _HEADERS.get(status))
        parts = {"what": what, "expected": expected, "fix": fix}
        self.parts = {name: visible(part) for name, part in parts.items() if part}

    def answer(self) -> JSONResponse:
        """The refusal as it is sent."""
        return JSONResponse({"error": self.parts}, self.status_code, self.headers)


def answer_errors(app: FastAPI) -> None:
    """Lets the app answer every error in its parts."""

    def handle(kind: type[Exception], refusal: Any) -> None:
        async def answer(request: Request, error: Exception) -> JSONResponse:
            found: RefusalError = refusal(error, request)
            return found.answer()

        app.add_exception_handler(kind, answer)

    handle(RefusalError, lambda error, _: error)
    handle(RequestValidationError, _invalid)
    handle(AnyHTTPException, _unknown)
    handle(IsthmusError, _wrong)
    handle(Exception, lambda error, _: failure(error))


def failure(error: BaseException) -> RefusalError:
    """What is said of a bug or a broken disk; all that is known goes to standard error."""
    text = visible("".join(traceback.format_exception(error)))
    console.print(text, highlight=False, markup=False)
    fix = "try again; if it fails again, the server's own output says more"
    return RefusalError(500, "the server failed to answer", fix)


def _invalid(error: RequestValidationError, request: Request) -> RefusalError:
    first = error.errors()[0]
    place, *names = first["loc"]
    name = ".".join(map(str, names)) or f"the {place}"
    fix = f"correct the request: /docs describes {request.url.path}"
    if first["type"] == "json_invalid":
        what = f"the body is not JSON: {first['ctx']['error']}"
    elif first["type"] == "model_attributes_type" and not names:
        what, fix = "the body is not a JSON object", "send one, as Content-Type: application/json"
    elif first["type"] == "missing":
        what = f"{name} is missing"
    elif first["type"] == "extra_forbidden":
        what = f"there is no {name} in this body"
    else:
        what = f"{name} = {shown(first['input'])}: {_SUBJECT.sub('', first['msg'])}"
    return RefusalError(422, what, fix)


def _unknown(error: AnyHTTPException, request: Request) -> RefusalError:
    what = f"{request.method} {request.url.path}: {error.detail}"
    found = RefusalError(error.status_code, what, "/docs lists every address and its methods")
    found.headers = error.headers
    return found


def _wrong(error: IsthmusError, _: Request) -> RefusalError:
    """Input that a layer below refuses; where it names a file, the server's own is at fault."""
    if not isinstance(error, InputError | SettingsError) or _PLACE.search(error.what):
        return failure(error)
    fix, expected = (_PLACE.sub("…", part) for part in (error.fix, error.expected))
    return RefusalError(422, error.what, fix, expected)
