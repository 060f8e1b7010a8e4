"""The part of a text that shows best why it was found: around the rarest words of the query."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from functools import cache, lru_cache
from itertools import pairwise

from isthmus.indexes.bm25.stop_words import stop_words
from isthmus.indexes.languages import FIRST_UNSPACED, HANGUL, UNSPACED

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


def snippets(texts: Sequence[str], query: str) -> list[str]:
    """A snippet of each text, 200 characters at most, around the rarest words of the query.

    A word is the rarer the fewer of the texts hold it.
    """
    texts = [" ".join(_MARK.sub("", text).split()) for text in texts]
    sought = _sought(query)
    places = [[(start, word) for start, _, word in _found(text, sought)] for text in texts]
    holding = Counter(word for found in places for word in {word for _, word in found})
    return [
        _cut(text, _densest(found[:_MOST], holding))
        for text, found in zip(texts, places, strict=True)
    ]


def marked(snippet: str, query: str) -> list[tuple[str, bool]]:
    """The snippet in parts, each with whether it is of words of the query, stop words aside."""
    parts, done = list[tuple[str, bool]](), 0
    for start, end, _ in _found(snippet, _sought(query)):
        if start < done:  # pairs of characters overlap
            parts[-1] = parts[-1][0] + snippet[done:end], True
        else:
            parts += [(snippet[done:start], False), (snippet[start:end], True)]
        done = end
    return [part for part in (*parts, (snippet[done:], False)) if part[0]]


def _found(text: str, sought: Sequence[str]) -> list[tuple[int, int, str]]:
    """Where words of a query begin and end in a text, cut to their first letters."""
    text = _lowered(text)
    pattern = _pattern_of_words(text)
    found: dict[int, tuple[int, int, str]] = {}
    for word in sought:
        start = text.find(word)
        while start >= 0:
            if _is_unspaced(word[0]):
                found[start] = start, start + len(word), word
            elif not (start and _is_letter(text[start - 1])):
                whole = pattern.match(text, start)
                if whole is not None and _stem(whole[0]) == word:
                    found[start] = start, whole.end(), word
            start = text.find(word, start + 1)
    return sorted(found.values())


def _pattern_of_words(text: str) -> re.Pattern[str]:
    """What finds the words of a text, and its runs of scripts without spaces."""
    plain = text.isascii() or max(text) < FIRST_UNSPACED
    return re.compile(r"\w+" if plain else _WORD)


def _is_unspaced(character: str) -> bool:
    """Whether a character is of a script without spaces between words."""
    return character >= FIRST_UNSPACED and re.match(_UNSPACED, character) is not None


def _is_letter(character: str) -> bool:
    """Whether a character is of a word between spaces."""
    return (character.isalnum() or character == "_") and not _is_unspaced(character)


def _lowered(text: str) -> str:
    """The text in small letters, each at the place it had."""
    lowered = text.lower()
    if len(lowered) == len(text):
        return lowered
    return "".join(small if len(small := letter.lower()) == 1 else letter for letter in text)


@lru_cache(maxsize=128)  # a query is looked for in every hit
def _sought(query: str) -> Sequence[str]:
    """The words of a query, or pairs of characters, longer ones last."""
    runs = _pattern_of_words(query.lower()).findall(query.lower())
    words = {word for run in runs for word in _words(run)}
    return sorted(words - _stop_words() or words, key=len)


def _words(run: str) -> list[str]:
    """A word cut to its first letters; of scripts without spaces, its pairs of characters."""
    if _is_unspaced(run[0]) and len(run) > 1:
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
