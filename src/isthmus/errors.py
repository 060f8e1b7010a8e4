"""The few exceptions a user can meet, each with the same four parts."""

from __future__ import annotations

import difflib
import re
import reprlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
_LONGEST_PART = 4_000  # characters of one part of an error

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 80


class IsthmusError(Exception):
    """Something the user gave cannot be used: what is wrong, where, what is allowed, what to do."""

    def __init__(self, what: str, *, where: str, allowed: str, remedy: str) -> None:
        self.what, self.where, self.allowed, self.remedy = (
            _shortened(printable(part)) for part in (what, where, allowed, remedy)
        )
        super().__init__(self.what)

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


def printable(text: str) -> str:
    """The text with escapes for what no terminal or UTF-8 file should get.

    These are control characters other than tab and line feed, and the lone surrogates that stand
    for bytes in names of files that are not UTF-8.
    """
    return _UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def shown(value: object) -> str:
    """The value as Python writes it, shortened where it is long, nested or a giant number."""
    try:
        return _SHORT.repr(value)
    except ValueError:  # more digits than Python converts
        return f"a number of more than {_SHORT.maxlong} digits"


def _shortened(text: str) -> str:
    if len(text) <= _LONGEST_PART:
        return text
    half = _LONGEST_PART // 2
    return f"{text[:half]} … ({len(text) - 2 * half:,} characters) … {text[-half:]}"


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
