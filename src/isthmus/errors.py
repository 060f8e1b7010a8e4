"""The few exceptions a user can meet: each says what is wrong, and what to do."""

from __future__ import annotations

import contextlib
import difflib
import re
import reprlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

# What a terminal obeys instead of showing it (control characters, those that turn a line round),
# and the lone surrogates that stand for bytes of a file's name that are not UTF-8.
_INVISIBLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_LONGEST_PART = 4_000  # characters of one part of an error

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 200


class IsthmusError(Exception):
    """Something the user gave cannot be used.

    `what` is wrong, with the value and its place; the `fix` is an instruction; `expected` lists
    the choices, where there are any.
    """

    def __init__(self, what: str, fix: str, expected: str = "") -> None:
        self.what, self.fix, self.expected = (
            shortened(visible(part)) for part in (what, fix, expected)
        )
        super().__init__(self.what)

    def to_dict(self) -> dict[str, str]:
        """Its parts, without those that are empty."""
        parts = {"what": self.what, "expected": self.expected, "fix": self.fix}
        return {name: part for name, part in parts.items() if part}

    def at(self, place: str) -> None:
        """Says at which place the error is, unless its sentence begins with that."""
        if not self.what.startswith(place):
            self.what = f"{place}: {self.what}"

    def __reduce__(self) -> tuple[Any, ...]:
        # Raised in a worker process, it must reach the user as it is.
        return _restored, (type(self), self.args, self.__dict__)

    def __str__(self) -> str:
        expected = f"\n  expected: {self.expected}" if self.expected else ""
        return f"{self.what}{expected}\n  fix: {self.fix}"


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

    def __init__(self, package: str, extra: str, needed_for: str) -> None:
        super().__init__(
            f"{needed_for} needs the Python package {package!r}, which is not installed",
            f"pip install 'isthmus[{extra}]'",
        )


@contextlib.contextmanager
def needing(package: str, *, extra: str, needed_for: str) -> Iterator[None]:
    """Says what to install where the block cannot import an optional package."""
    try:
        yield
    except ImportError:
        raise MissingPackageError(package, extra, needed_for) from None


def visible(text: str) -> str:
    """The text with control characters, marks of direction and lone surrogates as escapes."""
    return _INVISIBLE.sub(_escape, text)


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


def lone_surrogate(*texts: str) -> str:
    """The first half of a surrogate pair in these texts, which no file can hold; "" if none."""
    for text in texts:
        try:
            text.isascii() or text.encode()
        except UnicodeEncodeError as error:
            return text[error.start]
    return ""


def shown(value: object) -> str:
    """The value as Python writes it, shortened where it is long, nested or a giant number."""
    try:
        return _SHORT.repr(value)
    except ValueError:  # more digits than Python converts
        return f"a number of more than {_SHORT.maxlong} digits"


def shortened(text: str, longest: int = _LONGEST_PART) -> str:
    """The text, with a mark in place of its middle where it is longer than so many characters."""
    half = longest // 2
    return text if len(text) <= longest else f"{text[:half]} … {text[-half:]}"


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """The known names, those that look like `name` first, the rest in alphabetical order."""
    names = sorted(set(known))
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    return close + [other for other in names if other not in close]


def choices(name: str, known: Iterable[str], limit: int = 12) -> str:
    """The known names for `expected`, those that look like `name` first; "" if there are none."""
    ordered = nearest(name, known)
    more = f", … ({len(ordered)} in all)" if len(ordered) > limit else ""
    return ", ".join(ordered[:limit]) + more


def similar(path: Path) -> str:
    """Paths for `expected` that are there and look like one that is not."""
    missing = path
    while not missing.parent.is_dir() and missing != missing.parent:
        missing = missing.parent
    names = sorted(entry.name for entry in missing.parent.iterdir())
    close = difflib.get_close_matches(missing.name, names, n=3, cutoff=0.6)
    return ", ".join(str(missing.with_name(name)) for name in close)


@contextlib.contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turns the operating system's refusals to read a path into InputErrors."""
    try:
        yield
    except OSError as error:
        if error.errno is None:  # a library's own
            raise
        refused = isinstance(error, PermissionError)
        raise InputError(
            f"no permission to read {str(path)!r}"
            if refused
            else f"{str(path)!r} cannot be read: {error.strerror}",
            "change its permissions, or copy it" if refused else "check the path",
        ) from None
