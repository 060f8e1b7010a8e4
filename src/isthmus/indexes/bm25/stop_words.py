"""Stop words by language, the lists of bm25s 0.3 (MIT), and the language that they tell."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from importlib.resources import files

_WORD = re.compile(r"\w+")
_LETTERS = 4000  # of each text whose language is guessed
_LEAST = 0.15  # of all words
_ENGLISH = "english_many"  # 179 words, in place of Lucene's 33
_NOT_COMPARED = ("english", "chinese", "korean")  # twice there; no spaces between words


@lru_cache(maxsize=1)
def _lists() -> dict[str, frozenset[str]]:
    text = files("isthmus.indexes.bm25").joinpath("stop_words.json").read_text(encoding="utf-8")
    return {language: frozenset(words) for language, words in json.loads(text).items()}


def stop_words(language: str | None, many: bool = False) -> frozenset[str]:
    """The words of a language that say nothing alone; none where it has no list.

    `many`: of English, 179 words in place of Lucene's 33.
    """
    name = _ENGLISH if many and language == "english" else language or ""
    return _lists().get(name, frozenset())


def likely(texts: Iterable[str]) -> str | None:
    """The language whose stop words are most of the words of some texts; None where few are."""
    words = Counter(word for text in texts for word in _WORD.findall(text[:_LETTERS].lower()))
    shares = {
        name: sum(words[word] for word in listed.intersection(words)) / (words.total() or 1)
        for name, listed in _lists().items()
        if name not in _NOT_COMPARED
    }
    best = max(shares, key=shares.__getitem__)
    if shares[best] < 1.5 * shares[_ENGLISH]:  # many a text holds words of English
        best = _ENGLISH
    if shares[best] <= _LEAST:
        return None
    return "english" if best == _ENGLISH else best
