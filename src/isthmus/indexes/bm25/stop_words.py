"""Stop words by language: the lists of bm25s, read without bm25s itself.

Its package brings numba and scipy, which take longer to import than a search does, and starts JAX
where that is installed, with most of a GPU's memory.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path

_WORD = re.compile(r"\w+")
_LETTERS = 4000  # of each text whose language is guessed
_LEAST = 0.15  # of all words
_CERTAIN = 3  # times as many as English stop words
_APART = 1.3  # times as many as of the next language
_VARIED = 10  # different stop words: "dog" and "end" are Danish ones, and no Danish text
_COMPARED = (  # of languages that put spaces between words
    "DANISH", "DUTCH", "EN_PLUS", "FRENCH", "GERMAN", "ITALIAN", "NORWEGIAN", "POLISH",
    "PORTUGUESE", "RUSSIAN", "SPANISH", "SWEDISH", "TURKISH",
)  # fmt: skip
_POLISH = frozenset(  # of which bm25s has no list
    ("i", "w", "na", "nie", "się", "z", "do", "jest", "że", "to", "o", "po", "przez", "jak", "od",
     "za", "są", "dla")
)  # fmt: skip


@lru_cache(maxsize=1)
def _lists() -> dict[str, frozenset[str]]:
    package = find_spec("bm25s")
    assert package is not None
    assert package.origin is not None
    file = Path(package.origin).with_name("stopwords.py")
    spec = spec_from_file_location("bm25s.stopwords", file)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    named = {name: words for name, words in vars(module).items() if name.startswith("STOPWORDS_")}
    return {name.removeprefix("STOPWORDS_"): frozenset(words) for name, words in named.items()}


def stop_words(language: str | None, many: bool = False) -> frozenset[str]:
    """The words of a language that say nothing alone; none where it has no list.

    `many`: of English, 179 words in place of Lucene's 33.
    """
    if language == "english":
        return _lists()["EN_PLUS" if many else "EN"]
    return _lists().get((language or "").upper(), frozenset())


def likely(texts: Iterable[str]) -> str | None:
    """The language whose stop words are most of the words of some texts; None where few are."""
    shares = _shares(_words(texts))
    best = max(shares, key=shares.__getitem__)
    if shares[best] < 1.5 * shares["EN_PLUS"]:  # many a text holds words of English
        best = "EN_PLUS"
    if shares[best] <= _LEAST:
        return None
    return "english" if best == "EN_PLUS" else best.lower()


def is_certain(texts: Iterable[str], language: str) -> bool:
    """Whether texts hold many stop words of a language, far more than of English and of any other.

    Danish and Norwegian, say, share too many.
    """
    words = _words(texts)
    shares = _shares(words)
    varied = len(stop_words(language) & words.keys()) >= _VARIED
    share, english = shares.pop(language.upper()), shares.pop("EN_PLUS")
    return varied and share > max(_CERTAIN * english, _APART * max(shares.values()))


def _words(texts: Iterable[str]) -> Counter[str]:
    return Counter(word for text in texts for word in _WORD.findall(text[:_LETTERS].lower()))


def _shares(words: Counter[str]) -> dict[str, float]:
    """The share of words that are stop words of each language that is compared."""
    return {
        name: sum(words[word] for word in listed.intersection(words)) / (words.total() or 1)
        for name, listed in {**_lists(), "POLISH": _POLISH}.items()
        if name in _COMPARED
    }
