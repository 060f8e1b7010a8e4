"""Sentence starts in a text, by rule: no model, no language resources, linear time."""

from __future__ import annotations

import re

# A sentence ends at closing punctuation followed by space and something that can open a sentence,
# or at a blank line. Full stops after single letters (initials) and these abbreviations do not end
# one; the list holds what is frequent in encyclopaedic, medical and technical English.
_ABBREVIATIONS = frozenset(
    """mr mrs ms dr prof st vs etc e.g i.e cf al fig figs eq eqs no nos vol pp ed eds approx resp
    inc ltd co corp jr sr dept est sec ch jan feb mar apr jun jul aug sep sept oct nov dec
    """.split()  # noqa: SIM905 (a list of fifty strings reads worse)
)
# Possessive, and a run of stops is entered at its first only: linear however long the runs are.
_BOUNDARY = re.compile(
    r"""(?P<stop>(?<![.!?。！？])[.!?。！？]++["'”’)\]]*+)(?P<gap>\s++)(?=["'“‘(\[]*+\w)"""
    r"""|(?P<blank>\n[^\S\n]*+\n\s*+)"""
)
_LAST_WORD = re.compile(r"([\w.]+?)\.*$")


def sentence_starts(text: str) -> list[int]:
    """The character offsets at which sentences begin; the first is 0 (none for an empty text)."""
    if not text:
        return []
    starts = [0]
    for match in _BOUNDARY.finditer(text):
        if match["blank"] is None and match["stop"].startswith("."):
            before = _LAST_WORD.search(text[max(0, match.start() - 20) : match.start()])
            word = before[1] if before else ""
            following = text[match.end()]
            if len(word) == 1 and word.isalpha():
                continue
            if word.lower() in _ABBREVIATIONS or following.islower():
                continue
        if match.end() < len(text):
            starts.append(match.end())
    return starts
