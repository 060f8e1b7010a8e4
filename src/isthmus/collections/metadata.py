"""Metadata of documents: whatever a record has besides id, title and text."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import date
from functools import lru_cache
from typing import Any

from isthmus.errors import lone_surrogate, shown
from isthmus.progress import notice

_SHOWN = 6  # keys
_SINGLE = (str, int, float)
_NESTED = "metadata"  # BEIR's key for a mapping of them


class Others:
    """What the records of one source have besides known keys.

    Kept are texts, finite numbers, true and false, and lists of texts or of numbers; dates become
    ISO texts. null is as good as no value. Everything else is left out, which is said once.
    """

    def __init__(self, source: str, known: Iterable[str] = ()) -> None:
        self._source = source
        self._known = frozenset(known)
        self._left_out: Counter[str] = Counter()

    def of(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """The metadata of a record; the content of a mapping named metadata is a part of it."""
        if self._known.issuperset(record):
            return {}
        given = {key: value for key, value in record.items() if key not in self._known}
        if isinstance(given.get(_NESTED), Mapping):
            given = {**given.pop(_NESTED), **given}
        found = {}
        for key, value in given.items():
            kept = _plain(value) if isinstance(key, str) and not lone_surrogate(key) else None
            if kept is not None:
                found[key] = kept
            elif value is not None:
                self._left_out[shown(key)] += 1
        return found

    def tell(self) -> None:
        """Says which keys were left out, if any were."""
        if names := sorted(self._left_out):
            listed = ", ".join(names[:_SHOWN]) + ", …" * (len(names) > _SHOWN)
            _say(
                f"{self._source}: left out of the metadata ({self._left_out.total():,}): {listed}; "
                "kept are texts, numbers, true and false, and lists of texts or of numbers"
            )


def _plain(value: Any) -> Any:
    """The value as JSON has it; None where it is no metadata."""
    if isinstance(value, _SINGLE):
        return _single(value)
    if hasattr(value, "tolist"):  # numpy's
        value = value.tolist()
    if not isinstance(value, list | tuple):
        return _single(value)
    found = [_single(one) for one in value]
    texts = all(isinstance(one, str) for one in found)
    numbers = all(isinstance(one, int | float) and not isinstance(one, bool) for one in found)
    return found if texts or numbers else None


def _single(value: Any) -> str | bool | int | float | None:
    if isinstance(value, str):
        return None if lone_surrogate(value) else value
    if isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        return value if is_finite(value) else None
    # pandas' date that is none is a date that does not equal itself.
    return value.isoformat() if isinstance(value, date) and value == value else None


def is_finite(number: float) -> bool:
    """Whether a number is one that 64 bits can hold, rounded."""
    try:
        return math.isfinite(number)
    except OverflowError:  # a whole number of more than 308 digits
        return False


@lru_cache
def _say(message: str) -> None:
    notice(message)  # once, however often the documents are read
