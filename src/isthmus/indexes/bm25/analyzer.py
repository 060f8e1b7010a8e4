"""Texts to terms, alike for documents and queries."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from itertools import pairwise

import Stemmer

from isthmus.indexes.bm25.stop_words import stop_words
from isthmus.indexes.languages import AUTO, HAN, UNSPACED
from isthmus.indexes.manifest import Bm25Settings

_WORD = re.compile(r"\b\w\w+\b")
# Signs that belong to a word though Python's \w leaves them out: accents of their own, the vowels
# of Hebrew, Arabic and Indic scripts, joiners.
_SIGNS = (
    "\u0300-\u036f\u0483-\u0487\u0591-\u05bd\u05bf-\u05c7\u0610-\u061a\u064b-\u065f\u0670"
    "\u06d6-\u06ed\u0900-\u0963\u0966-\u0dff\u200c\u200d"
)
_RUN_OR_WORD = rf"([{UNSPACED}]+)|((?:[^\W{UNSPACED}]|[{_SIGNS}]){{2,}})"
_CHARACTER = re.compile("[^\u0e31\u0e34-\u0e3a\u0e47-\u0e4e][\u0e31\u0e34-\u0e3a\u0e47-\u0e4e]*")
_IDEOGRAPH = f"[{HAN}]"
_ACCENTS = re.compile("(?<=[a-zα-ω])[\u0300-\u036f]+")
_PLAIN = str.maketrans({"ё": "е", "ø": "o", "ł": "l", "đ": "d", "ı": "i", "æ": "ae", "œ": "oe"})


class Analyzer:
    """Text to terms: lower case, without stop words, stemmed."""

    def __init__(self, settings: Bm25Settings) -> None:
        settings = settings.resolved("english" if settings.language == AUTO else settings.language)
        self._english = settings.language == "english" and settings.accents == "keep"
        self._turkish = settings.language == "turkish"
        self._folds = settings.accents == "fold"
        self._stopwords = stop_words(settings.stopwords)
        self._stemmer = None if settings.stemmer == "none" else Stemmer.Stemmer(settings.stemmer)

    def terms(self, text: str) -> list[str]:
        """The terms of a text, with repetitions; those without spaces come before others."""
        if self._english:
            return self._stems(self._telling(_WORD.findall(text.lower())))
        if self._turkish:
            text = text.replace("İ", "i").replace("I", "ı")
        found: list[str] = []
        words = []
        text = unicodedata.normalize("NFKC", text).lower()
        for run, word in re.findall(_RUN_OR_WORD, text):
            if run:
                found += _pairs(run)
            else:
                words.append(word)
        stems = self._stems(self._telling(words))
        return found + ([_folded(stem) for stem in stems] if self._folds else stems)

    def _telling(self, words: Iterable[str]) -> list[str]:
        return [word for word in words if word not in self._stopwords]

    def _stems(self, words: list[str]) -> list[str]:
        return self._stemmer.stemWords(words) if self._stemmer is not None else words


def _pairs(run: str) -> Iterator[str]:
    """Neighbouring characters of a run without spaces, and its ideographs alone.

    An ideograph is often a word; a letter of another script is not, unless it stands alone.
    """
    characters = _CHARACTER.findall(run)
    if len(characters) == 1:
        yield run
        return
    yield from (one + other for one, other in pairwise(characters))
    yield from re.findall(_IDEOGRAPH, run)


def _folded(word: str) -> str:
    """A word without its accents; of Latin and Greek, whose letters stay the same without them."""
    if word.isascii():
        return word
    plain = _ACCENTS.sub("", unicodedata.normalize("NFD", word.translate(_PLAIN)))
    return unicodedata.normalize("NFC", plain)
