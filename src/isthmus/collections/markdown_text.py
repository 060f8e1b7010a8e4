"""Title, text and front matter of a Markdown page; all headings of the text are written alike."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

import yaml

from isthmus.config import plain_yaml

_HEADING = re.compile(r"#{1,6}[ \t]+(.+)")
_FENCE = re.compile(r"\s*(```|~~~)")
_UNDERLINE = re.compile(r" {0,3}(=+|-{2,})[ \t]*")
# Code, headings, quotations, items of lists, rows of tables: no line above an underline.
_OTHER = re.compile(r"\s*$| {4}|\t| {0,3}(?:#{1,6}\s|[>|]|[-*+]\s|\d{1,9}[.)]\s|```|~~~)")
_FRONT_LINES, _ENDS = 1000, ("---", "...")
_LONGEST_VALUE = 10_000  # characters that are read as YAML
_ENTRY = re.compile(r"[ \t#-]|$|(?:[\w.-]+|\"[^\"]*\"|'[^']*')[ \t]*:(?=\s|$)")
# A name and all lines up to the next one: list items need no space before them.
_FIELD = re.compile(
    r"^([\w.-]+|\"[^\"\n]*\"|'[^'\n]*')[ \t]*:(.*(?:\n(?:[ \t-].*)?)*)", re.MULTILINE
)


def read_markdown(source: str) -> tuple[str, str, dict[str, Any]]:
    """The title in the front matter of a page, its text, and what else its front matter says.

    All headings of the text begin with #.
    """
    lines = source.splitlines()
    block, body = _front_matter(lines)
    title, fields = _fields(block)
    return title, "\n".join(_with_marked_headings(lines[body:])), fields


def titled(title: str, text: str) -> tuple[str, str]:
    """The title of a page, or else its first heading, and the text without what repeats that."""
    lines = text.splitlines()
    fenced = False
    for number, line in enumerate(lines):
        if _FENCE.match(line):
            fenced = not fenced
        elif (
            not fenced
            and (heading := _HEADING.fullmatch(line))
            and (found := heading[1].rstrip(" \t#"))
        ):
            if not title or found == title:
                return found, "\n".join(lines[:number] + lines[number + 1 :])
            break
    return title, text


def _front_matter(lines: Sequence[str]) -> tuple[str, int]:
    """The YAML between two lines of dashes, and the number of lines that it takes with them."""
    if not lines or lines[0].rstrip() != "---":
        return "", 0
    marks = (n for n, line in enumerate(lines[1:_FRONT_LINES], 1) if line.rstrip() in _ENDS)
    end = next(marks, 0)
    block = lines[1:end]
    if not end or (block and not block[0].strip()) or not all(map(_ENTRY.match, block)):
        return "", 0  # lines drawn above and below a text
    return "\n".join(block), end + 1


def _fields(block: str) -> tuple[str, dict[str, Any]]:
    """The title in front matter, and its other values by name; the first of each name counts."""
    title, fields = None, dict[str, Any]()
    for entry in _FIELD.finditer(block):
        name = entry[1].strip("\"'")
        if name.lower() != "title":
            fields.setdefault(name, _value(entry))
        elif title is None:
            value = _value(entry)
            title = value if isinstance(value, str) else entry[2]  # 1.10 and 2024 as written
    return " ".join((title or "").split()), fields


def _value(entry: re.Match[str]) -> Any:
    """The value of one entry of front matter; as it is written where that is no YAML."""
    if len(entry[2]) < _LONGEST_VALUE:
        with suppress(yaml.YAMLError):  # a colon that is not quoted, say
            found = plain_yaml.load(entry[0])
            if found and isinstance(found, dict):
                return found.popitem()[1]
    return entry[2].strip()


def _with_marked_headings(lines: Iterable[str]) -> list[str]:
    """The lines, with # before a heading in place of the line of = or - below it."""
    found: list[str] = []
    fenced = False
    for line in lines:
        if _FENCE.match(line):
            fenced = not fenced
        elif not fenced and (mark := _UNDERLINE.fullmatch(line)) and _stands_alone(found):
            found[-1] = f"{'#' if '=' in mark[1] else '##'} {found[-1].strip()}"
            continue
        found.append(line)
    return found


def _stands_alone(lines: Sequence[str]) -> bool:
    """Whether the last line is a paragraph of its own."""
    if not lines or _OTHER.match(lines[-1]):
        return False
    return len(lines) == 1 or bool(_OTHER.match(lines[-2]))
