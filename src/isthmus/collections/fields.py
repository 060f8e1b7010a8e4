"""The names under which users' files keep identifiers, titles and texts."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from isthmus.collections.files import lines
from isthmus.collections.problems import Problems
from isthmus.errors import shown

DOCUMENT_ID = ("_id", "id", "docid", "document_id", "doc_id", "docno", "pid")
DOCUMENT_TITLE = ("title",)
DOCUMENT_TEXT = ("text", "contents", "body")
QUERY_ID = ("_id", "id", "query_id")
QUERY_TEXT = ("text", "query")

_SHOWN_KEYS = 20
_FORMAT_FIX = "correct the line"


def json_lines(file: Path, problems: Problems) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of a jsonl file with their places; other lines are reported."""
    for number, line in lines(file, problems):
        where = f"{file}:{number}"
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            detail = f"not JSON: {error.msg} at column {error.colno}"
            problems.report("broken line", where, detail, _FORMAT_FIX)
        except ValueError:  # Python converts no more digits than this
            detail = f"a number of more than {sys.get_int_max_str_digits():,} digits"
            problems.report("broken line", where, detail, _FORMAT_FIX)
        except RecursionError:
            problems.report("broken line", where, "nested too deeply", _FORMAT_FIX)
        else:
            if isinstance(record, dict):
                yield where, record
            else:
                detail = f"a JSON object is expected, not {line[:40]!r}"
                problems.report("broken line", where, detail, _FORMAT_FIX)


def identifier(
    record: Mapping[str, Any], keys: tuple[str, ...], where: str, problems: Problems
) -> str | None:
    """The record's identifier as a string; None after reporting that it has none."""
    key = _first(record, keys)
    value = record[key] if key else None
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, str) and value:
        return value
    detail = (
        f"the value of {key!r} is {shown(value)}, not an id"
        if key
        else _without("id", keys, record)
    )
    problems.report("broken line", where, detail, "give every line a non-empty id")
    return None


def text(
    record: Mapping[str, Any], keys: tuple[str, ...], where: str, problems: Problems
) -> str | None:
    """The record's text, "" where it is null or absent; None after reporting another value."""
    key = _first(record, keys)
    value = record[key] if key else ""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    problems.report(
        "broken line",
        where,
        f"the value of {key!r} is {shown(value)}, not a text",
        "quote the value",
    )
    return None


def has_any(
    record: Mapping[str, Any], keys: tuple[str, ...], where: str, problems: Problems
) -> bool:
    """Whether the record has one of these keys; reports it when not."""
    if _first(record, keys):
        return True
    detail = _without("text", keys, record)
    problems.report("broken line", where, detail, "rename the key that holds the text")
    return False


def _first(record: Mapping[str, Any], keys: tuple[str, ...]) -> str | None:
    for key in keys:  # no generator, whose making takes longer
        if key in record:
            return key
    return None


def _without(kind: str, keys: tuple[str, ...], record: Mapping[str, Any]) -> str:
    found = ", ".join(map(shown, islice(record, _SHOWN_KEYS))) or "none"
    found += ", …" * (len(record) > _SHOWN_KEYS)
    return f"no key for the {kind} ({', '.join(keys)}); the keys are {found}"
