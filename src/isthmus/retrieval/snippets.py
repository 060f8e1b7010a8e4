"""The part of a text that shows best why it was found, and the words in it that do."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING

from isthmus.indexes.bm25.stop_words import stop_words
from isthmus.indexes.languages import FIRST_UNSPACED, HANGUL, UNSPACED

if TYPE_CHECKING:
    from isthmus.retrieval.matches import Matched

_LENGTH = 200  # characters
_BEFORE = _LENGTH // 4  # of what surrounds the first word
_AFTER = _LENGTH - _BEFORE - 20  # in which words count: the last one is shown whole
_STEM = 6  # letters in which forms of a word are taken to agree
_SHORT = 3  # letters of words that have no plural
_MOST = 2000  # words of a text that are looked at
_MARK = re.compile(r"^#{1,6}[ \t]+", re.MULTILINE)  # of a heading
# Compiled where a text needs them, which takes milliseconds: most searches do without.
_WORD = rf"[{UNSPACED}]+|[^\W{UNSPACED}]+"
_UNSPACED = f"[{UNSPACED}]"
_WORDLESS = f"(?![{HANGUL}])[{UNSPACED}]"  # Korean puts spaces between words


@dataclass(frozen=True, slots=True)
class Snippet:
    """A part of a text, and from where to where words in it answer the query."""

    text: str
    highlights: tuple[tuple[int, int], ...]

    @property
    def parts(self) -> list[tuple[str, bool]]:
        """All of it in parts, each with whether it is a word that answers the query."""
        parts, done = list[tuple[str, bool]](), 0
        for start, end in self.highlights:
            parts += [(self.text[done:start], False), (self.text[start:end], True)]
            done = end
        return [part for part in (*parts, (self.text[done:], False)) if part[0]]


def snippets(
    texts: Sequence[str], query: str, matched: Sequence[Matched | None] = ()
) -> list[Snippet]:
    """A snippet of each text, 200 characters at most, around what answers the query.

    Where its tokens were compared with those of the query, that is where these are nearest, and
    the nearest words are highlighted with those of the query. Elsewhere it is around the rarest
    words of the query; a word is the rarer the fewer of the texts hold it.
    """
    plain, sought = [_one_line(text) for text in texts], _sought(query)
    known = matched or [None] * len(texts)
    places = [
        [] if one is not None else [(start, word) for start, _, word in _found(text, sought)]
        for text, one in zip(plain, known, strict=True)
    ]
    holding = Counter(word for found in places for word in {word for _, word in found})
    shown = []
    for given, text, found, one in zip(texts, plain, places, known, strict=True):
        if one is None:
            shown.append(_highlighted(_cut(text, _densest(found[:_MOST], holding)), sought))
            continue
        begun = given[: one.best_place(_AFTER)]
        place = len(_one_line(begun)) + begun[-1:].isspace()
        words = {word for answer in one.nearest_words() for word in _content_words(answer)}
        both = sorted({*sought, *(word for word in words if not word.isdigit())}, key=len)
        shown.append(_highlighted(_cut(text, min(place, len(text))), both))
    return shown


def has_content(word: str) -> bool:
    """Whether a word is one to be looked for: no stop word, and no sign."""
    return bool(_content_words(word))


def _one_line(text: str) -> str:
    """The text without marks of headings and without breaks of lines."""
    return " ".join(_MARK.sub("", text).split())


def _highlighted(text: str, sought: Sequence[str]) -> Snippet:
    """A snippet in which these words are highlighted."""
    spans = list[tuple[int, int]]()
    for start, end, _ in _found(text, sought):
        if spans and start < spans[-1][1]:  # pairs of characters overlap
            spans[-1] = spans[-1][0], max(end, spans[-1][1])
        else:
            spans.append((start, end))
    return Snippet(text, tuple(spans))


def _found(text: str, sought: Sequence[str]) -> list[tuple[int, int, str]]:
    """Where words of a query begin and end in a text, cut to their first letters."""
    text = _lowered(text)
    pattern = pattern_of_words(text)
    found: dict[int, tuple[int, int, str]] = {}
    for word in sought:
        start = text.find(word)
        while start >= 0:
            if is_unspaced(word[0]):
                found[start] = start, start + len(word), word
            elif not (start and _is_letter(text[start - 1])):
                whole = pattern.match(text, start)
                if whole is not None and _stem(whole[0]) == word:
                    found[start] = start, whole.end(), word
            start = text.find(word, start + 1)
    return sorted(found.values())


def pattern_of_words(text: str) -> re.Pattern[str]:
    """What finds the words of a text, and its runs of scripts without spaces."""
    plain = text.isascii() or max(text) < FIRST_UNSPACED
    return re.compile(r"\w+" if plain else _WORD)


def is_unspaced(character: str) -> bool:
    """Whether a character is of a script without spaces between words."""
    return character >= FIRST_UNSPACED and re.match(_UNSPACED, character) is not None


def _is_letter(character: str) -> bool:
    """Whether a character is of a word between spaces."""
    return (character.isalnum() or character == "_") and not is_unspaced(character)


def _lowered(text: str) -> str:
    """The text in small letters, each at the place it had."""
    lowered = text.lower()
    if len(lowered) == len(text):
        return lowered
    return "".join(small if len(small := letter.lower()) == 1 else letter for letter in text)


@lru_cache(maxsize=128)  # a query is looked for in every hit
def _sought(query: str) -> Sequence[str]:
    """The words of a query, or pairs of characters, longer ones last."""
    return sorted(_content_words(query) or _all_words(query), key=len)


def _content_words(text: str) -> set[str]:
    """The words of a text as they are looked for, stop words aside."""
    return _all_words(text) - _stop_words()


def _all_words(text: str) -> set[str]:
    runs = pattern_of_words(text.lower()).findall(text.lower())
    return {word for run in runs for word in _words(run)}


def _words(run: str) -> list[str]:
    """A word cut to its first letters; of scripts without spaces, its pairs of characters."""
    if is_unspaced(run[0]) and len(run) > 1:
        return [one + other for one, other in pairwise(run)]
    return [_stem(run)]


def _stem(word: str) -> str:
    """What forms of a word have in common: their first letters, without the s of a plural."""
    return word[:_STEM].removesuffix("s") if len(word) > _SHORT else word


@cache
def _stop_words() -> frozenset[str]:
    return frozenset(map(_stem, stop_words("english", many=True)))


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
    if max(one, other) < FIRST_UNSPACED:
        return False
    beside = re.match(_WORDLESS, one) or re.match(_WORDLESS, other)
    return beside is not None and not unicodedata.category(other).startswith("M")
