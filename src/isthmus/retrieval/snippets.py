"""The part of a text that shows best why it was found: around the rarest words of the query."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import groupby, pairwise
from operator import itemgetter

from isthmus.indexes.bm25.stop_words import stop_words
from isthmus.indexes.languages import HANGUL, UNSPACED

_LENGTH = 200  # characters
_BEFORE = _LENGTH // 4  # of what surrounds the first word
_AFTER = _LENGTH - _BEFORE - 20  # in which words count: the last one is shown whole
_STEM = 6  # letters in which forms of a word are taken to agree
_SHORT = 3  # letters of words that have no plural
_MOST = 2000  # words of a text that are looked at
_MARK = re.compile(r"^#{1,6}[ \t]+", re.MULTILINE)  # of a heading
_WORD = re.compile(rf"[{UNSPACED}]+|[^\W{UNSPACED}]+")
_UNSPACED = re.compile(f"[{UNSPACED}]")
_WORDLESS = re.compile(f"(?![{HANGUL}])[{UNSPACED}]")  # Korean puts spaces between words


def snippets(texts: Sequence[str], query: str) -> list[str]:
    """A snippet of each text, 200 characters at most, around the rarest words of the query.

    A word is the rarer the fewer of the texts hold it.
    """
    texts = [" ".join(_MARK.sub("", text).split()) for text in texts]
    wanted = _wanted(query)
    places = [
        [(at, word) for at, word in _words(text, alone=True) if word in wanted] for text in texts
    ]
    holding = Counter(word for found in places for word in {word for _, word in found})
    return [
        _cut(text, _densest(found[:_MOST], holding))
        for text, found in zip(texts, places, strict=True)
    ]


def marked(snippet: str, query: str) -> list[tuple[str, bool]]:
    """The snippet in parts, each with whether it is of words of the query, stop words aside."""
    wanted, matches = _wanted(query), bytearray(len(snippet))
    for match in _WORD.finditer(snippet):
        for start, end in _found(match, wanted):
            matches[start:end] = b"\1" * (end - start)
    parts = groupby(zip(snippet, matches, strict=True), key=itemgetter(1))
    return [("".join(letter for letter, _ in part), bool(found)) for found, part in parts]


def _found(match: re.Match[str], wanted: set[str]) -> Iterator[tuple[int, int]]:
    """Where the words of a query stand in a run of letters: all of it, or some of its pairs."""
    run, first = match[0].lower(), match.start()
    if not _UNSPACED.match(run):
        if _stem(run) in wanted:
            yield match.span()
        return
    for place in range(len(run)):
        if run[place : place + 2] in wanted and place + 1 < len(run):
            yield first + place, first + place + 2
        elif run[place] in wanted:
            yield first + place, first + place + 1


def _stem(word: str) -> str:
    """What forms of a word have in common: their first letters, without the s of a plural."""
    return word[:_STEM].removesuffix("s") if len(word) > _SHORT else word


def _wanted(query: str) -> set[str]:
    """The words of a query that are looked for."""
    words = {word for _, word in _words(query)}
    return words - _stop_words() or words


@cache
def _stop_words() -> frozenset[str]:
    return frozenset(map(_stem, stop_words("english", many=True)))


def _words(text: str, alone: bool = False) -> Iterator[tuple[int, str]]:
    """Words with their places, cut to their first letters; of scripts without spaces, pairs.

    `alone`: each character of a pair too.
    """
    for match in _WORD.finditer(text.lower()):
        if _UNSPACED.match(match[0]) and len(match[0]) > 1:
            for place, (one, other) in enumerate(pairwise(match[0]), start=match.start()):
                yield place, one + other
                if alone:
                    yield place, one
            if alone:
                yield match.end() - 1, match[0][-1]
        else:
            yield match.start(), _stem(match[0])


def _densest(places: Sequence[tuple[int, str]], holding: Counter[str]) -> int:
    """The place from which on the words of a snippet weigh most; the first of several."""
    best, found, last = 0.0, 0, 0
    inside: Counter[str] = Counter()
    for first, (start, word) in enumerate(places):
        while last < len(places) and places[last][0] < start + _AFTER:
            inside[places[last][1]] += 1
            last += 1
        weight = sum(1 / holding[each] for each, count in inside.items() if count)
        if weight > best:
            best, found = weight, start
        inside[word] -= 1
        assert first < last
    return found


def _cut(text: str, place: int) -> str:
    start = max(0, place - _BEFORE)
    if start:
        start = next((one for one in range(start, place) if _parts(text, one)), start)
    end = len(text)
    if end - start > _LENGTH:
        last, least = start + _LENGTH, start + _LENGTH // 2
        end = next((one for one in range(last, least, -1) if _parts(text, one)), last)
    shown = text[start:end].strip()
    return f"{'… ' if start else ''}{shown}{' …' if end < len(text) else ''}"


def _parts(text: str, place: int) -> bool:
    """Whether no word goes on at a place: at spaces, and beside characters that need none."""
    one, other = text[place - 1], text[place]
    if " " in (one, other):
        return True
    beside = _WORDLESS.match(one) or _WORDLESS.match(other)
    return beside is not None and not unicodedata.category(other).startswith("M")
