"""Title and text of a Markdown page: without its front matter, all headings written alike."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress

import yaml

from isthmus.config import plain_yaml

_HEADING = re.compile(r"#{1,6}[ \t]+(.+)")
_FENCE = re.compile(r"\s*(```|~~~)")
_UNDERLINE = re.compile(r" {0,3}(=+|-{2,})[ \t]*")
# Code, headings, quotations, items of lists, rows of tables: no line above an underline.
_OTHER = re.compile(r"\s*$| {4}|\t| {0,3}(?:#{1,6}\s|[>|]|[-*+]\s|\d{1,9}[.)]\s|```|~~~)")
_FRONT_LINES, _ENDS = 1000, ("---", "...")
_LONGEST_TITLE = 10_000  # characters that are read as YAML
_ENTRY = re.compile(r"[ \t#-]|$|(?:[\w.-]+|\"[^\"]*\"|'[^']*')[ \t]*:(?=\s|$)")
_TITLE = re.compile(r"^title[ \t]*:(.*(?:\n[ \t].*)*)", re.MULTILINE | re.IGNORECASE)


def read_markdown(source: str) -> tuple[str, str]:
    """The title in the front matter of a page, and its text, whose headings all begin with #."""
    lines = source.splitlines()
    title, body = _front_matter(lines)
    return title, "\n".join(_with_marked_headings(lines[body:]))


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
    """The title in the YAML between two lines of dashes, and the number of lines that it takes."""
    if not lines or lines[0].rstrip() != "---":
        return "", 0
    marks = (n for n, line in enumerate(lines[1:_FRONT_LINES], 1) if line.rstrip() in _ENDS)
    end = next(marks, 0)
    block = lines[1:end]
    if not end or (block and not block[0].strip()) or not all(map(_ENTRY.match, block)):
        return "", 0  # lines drawn above and below a text
    entry = _TITLE.search("\n".join(block))
    if entry is None:
        return "", end + 1
    title = entry[1]
    with suppress(yaml.YAMLError):  # a colon that is not quoted, say
        found = plain_yaml.load(entry[0]) if len(title) < _LONGEST_TITLE else None
        value = found.popitem()[1] if isinstance(found, dict) else None
        title = value if isinstance(value, str) else title  # yes, 1.10 and 2024 as written
    return " ".join(title.split()), end + 1


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
