"""Long documents cut into passages that an encoder reads whole, at sentences and headings."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import islice, pairwise, takewhile
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import Field

from isthmus.config import Settings
from isthmus.records import Document, Passage
from isthmus.text.sentences import sentence_starts

SHORTEST = 16  # units: less is no passage
_DOCUMENTS_AT_ONCE = 64
BETWEEN = " › "  # headings of a path
_LINE = re.compile(r"[^\n]*\n?")
_HEADING = re.compile(r"(#{1,6})[ \t]+(.*?)[\s#]*$")
_FENCE = re.compile(r"\s*(```|~~~)")
# Chinese, Japanese, Korean, Thai and their neighbours do not write spaces: each character counts.
_WORD = re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]|[^\W_]+")

Starts = npt.NDArray[np.int64]
Measure = Callable[[list[str]], list[Starts]]
"""The characters at which the units of each text begin: words, or an encoder's tokens."""


class PassageSettings(Settings):
    """How documents are cut into passages."""

    length: int | None = Field(
        None,
        ge=SHORTEST,
        description="tokens of a passage, title and headings included; null: all that the encoder "
        "reads",
    )
    overlap: float = Field(
        0.15, ge=0, le=0.5, description="share of a passage that repeats the end of the last one"
    )
    model: str | None = Field(
        None, description="whose tokens are counted; null: those of the index's own encoder"
    )


Chosen = bool | PassageSettings | None
"""What settings say of passages; null: yes."""


class Cut(Settings):
    """How the passages of an index were made: units, and the tokenizer that counts them.

    Without a tokenizer units are words. `model` names where to load it from, if that is not the
    encoder of the index.
    """

    length: int = Field(ge=SHORTEST)
    overlap: float = Field(ge=0, le=0.5)
    tokenizer: str | None = None
    model: str | None = None


class Cutter:
    """Cuts documents into passages of `cut.length` units at most."""

    def __init__(self, cut: Cut, measure: Measure | None = None) -> None:
        """Units are words where no measure is given."""
        self.cut = cut
        self._measure = measure or word_starts

    def passages(self, documents: Iterable[Document]) -> Iterator[Passage]:
        """The passages of all documents in order; a document that fits is one passage."""
        remaining = iter(documents)
        while batch := list(islice(remaining, _DOCUMENTS_AT_ONCE)):
            starts = self._measure([document.text for document in batch])
            titles = self._measure([document.title for document in batch])
            for document, units, title in zip(batch, starts, titles, strict=True):
                yield from self._cut(document, units, len(title))

    def _cut(self, document: Document, units: Starts, title: int) -> Iterator[Passage]:
        pieces = _pieces(document.text, units, self.cut.length // 2)
        for number, (first, last) in enumerate(self._ranges(pieces, title), start=1):
            # Headings above all of it; those of only a part of it stay in the text.
            within = [piece.headings for piece in pieces[first:last] if not piece.is_heading]
            headings = _common(within or [pieces[first].headings[:-1]])
            inner = first
            while pieces[inner].is_heading and pieces[inner].stands_above(headings):
                inner += 1
            start, end = pieces[inner].start, pieces[last - 1].end
            text = document.text[start:end]
            start += len(text) - len(text.lstrip())
            text = text.strip()
            yield Passage(
                f"{document.id}#{number}",
                text,
                document.title,
                BETWEEN.join(headings),
                start,
                start + len(text),
                metadata=document.metadata,
            )

    def _ranges(self, pieces: list[_Piece], title: int) -> Iterator[tuple[int, int]]:
        """First piece of each passage, and the one after its last."""
        first, length = 0, self.cut.length
        while True:
            room = max(length - title - pieces[first].above, length // 2)
            last = self._end(pieces, first, room)
            if last == len(pieces):
                # The rest of a text is filled up from what stands before it.
                if first and sum(piece.units for piece in pieces[first:]) < room // 2:
                    first = _back(pieces, first, room - sum(p.units for p in pieces[first:]))
                yield first, last
                return
            yield first, last
            first = max(first + 1, _back(pieces, last, int(self.cut.overlap * length)))

    def _end(self, pieces: list[_Piece], first: int, room: int) -> int:
        """Where a passage ends: full, or half full and at a heading; never after a heading."""
        filled, last = 0, first
        while last < len(pieces) and (last == first or filled + pieces[last].units <= room):
            if pieces[last].is_heading and not pieces[last - 1].is_heading and 2 * filled >= room:
                break
            filled += pieces[last].units
            last += 1
        while last < len(pieces) and last > first + 1 and pieces[last - 1].is_heading:
            last -= 1
        return last


class _Piece(NamedTuple):
    """A sentence, a part of a long one, or the line of a heading."""

    start: int
    end: int
    units: int
    headings: tuple[str, ...]  # above it, the piece itself included where it is one
    above: int  # units of these headings
    is_heading: bool = False

    def stands_above(self, headings: tuple[str, ...]) -> bool:
        """Whether it is a heading of this path."""
        return self.headings == headings[: len(self.headings)]


def _common(paths: list[tuple[str, ...]]) -> tuple[str, ...]:
    """What all paths of headings begin with."""
    alike = takewhile(lambda level: len(set(level)) == 1, zip(*paths, strict=False))
    return tuple(level[0] for level in alike)


def _back(pieces: list[_Piece], last: int, room: int) -> int:
    """The first of the pieces before `last` that fit into the room, within one section."""
    first = last
    if pieces[last].is_heading:
        return first
    while first and not pieces[first - 1].is_heading and pieces[first - 1].units <= room:
        first -= 1
        room -= pieces[first].units
    return first


def _pieces(text: str, units: Starts, longest: int) -> list[_Piece]:
    """All of a text in order; at least one piece, none but headings of more than `longest`."""
    found: list[_Piece] = []
    above: list[tuple[int, str, int]] = []  # levels, headings and their units

    def counted(start: int, end: int) -> int:
        return int(np.subtract(*np.searchsorted(units, [end, start])))

    def add(start: int, end: int, is_heading: bool = False) -> None:
        headings = tuple(heading for _, heading, _ in above)
        place = sum(count + 1 for *_, count in above)
        found.append(_Piece(start, end, counted(start, end), headings, place, is_heading))

    sections = [*_headings(text), (len(text), len(text), 0, "")]
    for start, end in _sentences(text, 0, sections[0][0], units, longest):
        add(start, end)
    for (line, after, level, heading), (following, *_) in pairwise(sections):
        above[:] = [one for one in above if one[0] < level]
        above.append((level, heading, counted(line, after)))
        add(line, after, is_heading=True)
        for start, end in _sentences(text, after, following, units, longest):
            add(start, end)
    return found or [_Piece(0, len(text), 0, (), 0)]


def _headings(text: str) -> Iterator[tuple[int, int, int, str]]:
    """Start, end, level and text of each Markdown heading that is not in a fenced block."""
    if "#" not in text:
        return
    fenced = False
    for line in _LINE.finditer(text):
        if _FENCE.match(line[0]):
            fenced = not fenced
        elif not fenced and (match := _HEADING.match(line[0])) and match[2]:
            yield line.start(), line.end(), len(match[1]), match[2]


def _sentences(
    text: str, start: int, end: int, units: Starts, longest: int
) -> Iterator[tuple[int, int]]:
    """The sentences of a stretch; one of more than `longest` units in parts, best whole lines."""
    section = text[start:end]
    places = [start + place for place in sentence_starts(section)] if section.strip() else []
    for begun, last in pairwise([*places, end]):
        while True:
            low, high = np.searchsorted(units, [begun, last])
            if high - low <= longest:
                break
            limit = max(int(units[low + longest]), begun + 1)
            line, word = (text.rfind(gap, begun, limit) for gap in ("\n", " "))
            stop = next((place + 1 for place in (line, word) if place > begun), limit)
            yield begun, stop
            begun = stop
        yield begun, last


def word_starts(texts: list[str]) -> list[Starts]:
    """The characters at which the words of each text begin."""
    return [
        np.array([match.start() for match in _WORD.finditer(text)], dtype=np.int64)
        for text in texts
    ]
