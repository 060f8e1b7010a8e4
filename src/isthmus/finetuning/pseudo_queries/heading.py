"""A heading of the document: a short line of its own, without an end of a sentence, before text."""

from __future__ import annotations

import re

import numpy as np
from pydantic import Field

from isthmus.finetuning.pseudo_queries._base import PseudoQuery, PseudoQuerySource, SourceSettings
from isthmus.records import Document

_MARKS = re.compile(r"^(#{1,6}\s+|\d+(\.\d+)*\.?\s+)|\s*#*$")
_UNDERLINE = re.compile(r"^([=\-~^])\1{2,}$")


class HeadingSettings(SourceSettings):
    """How long a line may be that passes for a heading."""

    max_words: int = Field(12, ge=1, description="longer lines are not headings")


class Heading(PseudoQuerySource):
    """Headings of Markdown and reStructuredText, and short lines that stand alone."""

    Settings = HeadingSettings
    settings: HeadingSettings

    def draw(
        self, document: Document, count: int, random: np.random.Generator
    ) -> list[PseudoQuery]:
        """Different headings in random order; each is left out of the document."""
        lines = document.text.split("\n")
        found = []
        for number, line in enumerate(lines[:-1]):
            text = _MARKS.sub("", line.strip())
            below = lines[number + 1].strip()
            alone = line.lstrip().startswith("#") or not below or _UNDERLINE.match(below)
            if alone and self._short(text) and any(rest.strip() for rest in lines[number + 1 :]):
                found.append(PseudoQuery(text, line.strip()))
        return [found[number] for number in random.permutation(len(found))[:count]]

    def _short(self, text: str) -> bool:
        words = len(text.split())
        return 0 < words <= self.settings.max_words and text[-1].isalnum()
