"""Texts to terms, alike for documents and queries."""

from __future__ import annotations

import re

import Stemmer

from isthmus.indexes.bm25.stop_words import stop_words
from isthmus.indexes.manifest import Bm25Settings

_WORD = re.compile(r"\b\w\w+\b")


class Analyzer:
    """Text to terms: lower case, without stop words, stemmed."""

    def __init__(self, settings: Bm25Settings) -> None:
        self._stopwords = stop_words(settings.stopwords)
        self._stemmer = Stemmer.Stemmer("english") if settings.stemmer == "english" else None

    def terms(self, text: str) -> list[str]:
        """The terms of a text in order, with repetitions."""
        words = [word for word in _WORD.findall(text.lower()) if word not in self._stopwords]
        return self._stemmer.stemWords(words) if self._stemmer is not None else words
