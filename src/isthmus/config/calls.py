"""What verbs are called with from Python, where no command line has made texts of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from os import PathLike
from pathlib import Path

from isthmus.errors import InputError, shown


def check_arguments(
    verb: str, texts: Mapping[str, object], optional: Mapping[str, object] | None = None
) -> None:
    """Raises on an argument that is neither a text nor a path; optional ones may be None."""
    given = {name: value for name, value in (optional or {}).items() if value is not None}
    for name, value in {**texts, **given}.items():
        if not isinstance(value, str | PathLike):
            raise InputError(
                f"{name} = {shown(value)} of isthmus.{verb}() is of type {type(value).__name__}, "
                "not a text or path",
                f"write {name}=str(…), or call {verb} once for each",
            )


def several(given: Iterable[str | Path] | str | Path) -> list[str]:
    """Names or paths as texts, also where one is given and not a list of one."""
    return list(map(str, [given] if isinstance(given, str | PathLike) else given))
