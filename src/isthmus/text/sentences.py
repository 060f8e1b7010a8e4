"""Sentence starts in a text, by rule: no model, no language resources, linear time."""

from __future__ import annotations

import re
from bisect import bisect_right

import numpy as np
import numpy.typing as npt

# A sentence ends at closing punctuation followed by space and something that can open a sentence,
# or at a blank line. Full stops after single letters (initials) and these abbreviations do not end
# one; the list holds what is frequent in encyclopaedic, medical and technical English.
_ABBREVIATIONS = frozenset(
    """mr mrs ms dr prof st vs etc e.g i.e cf al fig figs eq eqs no nos vol pp ed eds approx resp
    inc incl excl ltd co corp govt jr sr dept est sec ch proc appl phys jan feb mar apr jun jul aug
    sep sept oct nov dec
    """.split()  # noqa: SIM905 (a list of sixty strings reads worse)
)
# Possessive, and a run of stops is entered at its first only: linear however long the runs are.
# Full stops of Chinese, Japanese, Hindi, Urdu, Khmer and Burmese need no space after them. Thai and
# Lao have none: where they put a space, a clause ends, and after enough characters a sentence.
_BOUNDARY = re.compile(
    r"""(?P<stop>(?<![.!?])[.!?]++["'”’)\]]*+)(?P<gap>\s++)(?=["'“‘(\[]*+\w)"""
    r"""|(?P<full>(?<![。！？｡।॥۔؟។။])[。！？｡।॥۔؟។။]++["'”’)\]」』）】》]*+\s*+)(?=\S)"""
    r"""|(?<=[\u0e00-\u0eff])(?P<clause>[ \u00a0]++)(?=[\u0e00-\u0eff])"""
    r"""|(?P<blank>\n[^\S\n]*+\n\s*+)"""
)
_CLAUSES = 40  # characters of Thai that make a sentence
# Compiled where it is used first, which takes milliseconds.
_UNSPACED = (
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]"
)
_LAST_WORD = re.compile(r"(\w[\w.'’]*?)\.*$")
_MEASURE = re.compile(r"\d\s*\w+$")  # 5 in
_ORDINARY = re.compile(r"(?:[^\W\d_]|['’]){4,}")


def sentence_starts(text: str) -> list[int]:
    """The character offsets at which sentences begin; the first is 0 (none for an empty text)."""
    if not text:
        return []
    starts = [0]
    small = text.islower()
    for match in _BOUNDARY.finditer(text):
        if match["clause"] and match.start() - starts[-1] < _CLAUSES:
            continue
        stop = match["stop"] or ""
        if stop.startswith(".") and match["gap"].count("\n") < 2:
            before = text[max(0, match.start() - 20) : match.start()]
            if not _ends(before, stop, text[match.end()], small):
                continue
        if match.end() < len(text):
            starts.append(match.end())
    return starts


def word_count(text: str) -> int:
    """The number of words; of scripts without spaces, about two characters are one."""
    spaced, unspaced = re.subn(_UNSPACED, " ", text)
    return len(spaced.split()) + unspaced // 2


def _ends(before: str, stop: str, following: str, small: bool) -> bool:
    """Whether a full stop ends a sentence; `before` is the text in front of it, cut short.

    `small`: the text has no capitals at all, so that a small letter after the stop says nothing.
    """
    match = _LAST_WORD.search(before)
    word = match[1] if match else ""
    if (len(word) == 1 and word.isalpha()) or word.lower() in _ABBREVIATIONS:
        return False
    if not following.islower():
        return True
    # Some write sentences without capitals, whole texts or here and there. A small letter opens one
    # after a bare stop that no word owns, or that an ordinary word does: short words, capitalised
    # ones, numbers and words with stops inside are too often units, abbreviations and list marks.
    if stop != ".":
        return False
    if small and word.isalpha() and not _MEASURE.search(before):
        return True
    if word:
        return word.islower() and _ORDINARY.fullmatch(word) is not None
    return not before.rstrip().endswith(".")  # ". . ." is no end


Span = tuple[int, int]


def spans(length: int, sentences: npt.NDArray[np.integer], limit: int) -> list[Span]:
    """The (start, end) of consecutive spans that tile a document, none longer than `limit`.

    Each takes as many whole sentences as fit. A sentence that is longer than the limit is cut;
    what is left of it shares a span with the sentences that follow.
    """
    assert limit > 0, limit
    boundaries = [0, *sentences.tolist(), length]
    found = []
    start = 0
    while start < length:
        end = span_end(boundaries, start, limit)
        found.append((start, end))
        start = end
    return found


def span_end(boundaries: list[int], start: int, limit: int) -> int:
    """The last boundary that a span from `start` can reach, or the limit where it reaches none."""
    reached = boundaries[bisect_right(boundaries, start + limit) - 1]
    return reached if reached > start else start + limit
