"""The languages that BM25 knows, and which of them some documents are written in."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Annotated

from pydantic import AfterValidator

from isthmus.errors import choices

NONE = "none"
AUTO = "auto"
_CODES = {
    "ar": "arabic", "ca": "catalan", "da": "danish", "de": "german", "el": "greek",
    "en": "english", "es": "spanish", "eu": "basque", "fi": "finnish",
    "fr": "french", "ga": "irish", "hi": "hindi", "hu": "hungarian", "hy": "armenian",
    "id": "indonesian", "it": "italian", "ja": "japanese", "ko": "korean", "lt": "lithuanian",
    "ne": "nepali", "nl": "dutch", "no": "norwegian", "pt": "portuguese", "ro": "romanian",
    "ru": "russian", "sr": "serbian", "sv": "swedish", "ta": "tamil", "th": "thai",
    "tr": "turkish", "yi": "yiddish", "zh": "chinese",
}  # fmt: skip
UNSTEMMED = frozenset({"chinese", "japanese", "korean", "thai", NONE})
LANGUAGES = (*sorted(_CODES.values()), NONE)
# Patterns of so many characters take milliseconds to compile: `re` does so where one is used first.
# Characters of scripts that put no spaces between words, and Hangul, whose words carry particles.
_THAI = "\u0e01-\u0e3e\u0e40-\u0e7f"
_KANA = "\u3041-\u30fa\u30fc-\u30ff\u31f0-\u31ff"
HANGUL = "\u1100-\u11ff\u3130-\u318f\uac00-\ud7af"
HAN = "\u3005\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
FIRST_UNSPACED = _THAI[0]
UNSPACED = f"{_THAI}\u0e80-\u0eff\u1000-\u109f\u1780-\u17d3{_KANA}{HANGUL}{HAN}"

_LETTERS = 4000  # of each text
_MOST = 0.3  # of all letters: Japanese and Chinese texts about computers hold much Latin


def _known(name: str) -> str:
    name = _CODES.get(name.lower(), name.lower())
    if name not in (AUTO, *LANGUAGES):
        raise ValueError(f"known are {choices(name, (AUTO, *LANGUAGES))}, and codes such as de")
    return name


Language = Annotated[str, AfterValidator(_known)]
"""A language by its English name or two-letter code, `auto`, or `none`."""


def detected(texts: Iterable[str]) -> str:
    """The language of some texts, if their script tells it; else English."""
    counts: Counter[str] = Counter()
    for text in texts:
        for name, letters in _SCRIPTS.items():
            counts[name] += len(re.findall(letters, text[:_LETTERS]))
    unspaced = sum(counts[name] for name in _SCRIPTS if name != NONE)
    if unspaced <= _MOST * counts.total():
        return "english"
    if counts["japanese"] > unspaced / 10:  # kana, which Japanese mixes with ideographs
        return "japanese"
    return max(("chinese", "korean", "thai"), key=counts.__getitem__)


_SCRIPTS = {
    "chinese": f"[{HAN}]",
    "japanese": f"[{_KANA}]",
    "korean": f"[{HANGUL}]",
    "thai": f"[{_THAI}]",
    NONE: rf"[^\W\d_{UNSPACED}]",
}
