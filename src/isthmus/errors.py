"""The few exceptions a user can meet, each with the same four parts."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path
from typing import Any


class IsthmusError(Exception):
    """Something the user gave cannot be used: what is wrong, where, what is allowed, what to do."""

    def __init__(self, what: str, *, where: str, allowed: str, remedy: str) -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.allowed = allowed
        self.remedy = remedy

    def __reduce__(self) -> tuple[Any, ...]:
        # Raised in a worker process, it must reach the user as it is.
        return _restored, (type(self), self.args, self.__dict__)

    def __str__(self) -> str:
        return (
            f"{self.what}\n  where:   {self.where}\n  allowed: {self.allowed}\n"
            f"  to do:   {self.remedy}"
        )


def _restored(
    kind: type[IsthmusError], arguments: tuple[Any, ...], parts: dict[str, Any]
) -> IsthmusError:
    error = kind.__new__(kind, *arguments)
    error.__dict__.update(parts)
    return error


class SettingsError(IsthmusError):
    """A recipe, flag or override asks for something that does not exist or cannot be combined."""


class InputError(IsthmusError):
    """A file, folder or collection cannot be read as what it was given as."""


class OutputError(IsthmusError):
    """An output cannot be written where the user wants it."""


class MismatchError(IsthmusError):
    """Two things that belong together do not: an index and its encoder, a run and its corpus."""


class TrainingError(IsthmusError):
    """Training cannot go on, and only other settings can mend it."""


class MissingPackageError(IsthmusError):
    """A feature needs an optional package that is not installed."""

    def __init__(self, package: str, *, extra: str, needed_for: str) -> None:
        super().__init__(
            f"the Python package {package!r} is not installed",
            where=needed_for,
            allowed=f"the extra [{extra}] brings it",
            remedy=f"pip install 'isthmus[{extra}]'",
        )


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """The known names, those that look like `name` first, the rest in alphabetical order."""
    names = sorted(set(known))
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    return close + [other for other in names if other not in close]


def choices(name: str, known: Iterable[str], limit: int = 12) -> str:
    """The allowed names as a sentence part, nearest first, with a suggestion where one is close."""
    ordered = nearest(name, known)
    if not ordered:
        return "nothing: there are none"
    shown = ", ".join(ordered[:limit])
    if len(ordered) > limit:
        shown += f", … ({len(ordered)} in all)"
    return shown


def existing(what: str, path: Path) -> str:
    """What is allowed where a path leads nowhere: a file, say, and the few of a similar name."""
    if not path.parent.is_dir():
        return f"an existing {what}; there is no folder {str(path.parent)!r} either"
    names = sorted(entry.name for entry in path.parent.iterdir())
    close = difflib.get_close_matches(path.name, names, n=3, cutoff=0.5)
    return f"an existing {what}" + (f", perhaps {', '.join(close)}" if close else "")
