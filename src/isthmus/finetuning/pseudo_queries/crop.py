"""A random stretch of the document's words, left in it or out of it (Contriever leaves it in)."""

from __future__ import annotations

import numpy as np
from pydantic import Field

from isthmus.finetuning.pseudo_queries._base import PseudoQuery, PseudoQuerySource, SourceSettings
from isthmus.records import Document


class CropSettings(SourceSettings):
    """How long a stretch is."""

    min_words: int = Field(4, ge=1, description="of a stretch")
    max_words: int = Field(16, ge=1, description="of a stretch")
    left_in: float = Field(1.0, ge=0, le=1, description="share of stretches that are not left out")


class Crop(PseudoQuerySource):
    """Random spans of words, for texts without sentence punctuation."""

    Settings = CropSettings
    settings: CropSettings

    def draw(
        self, document: Document, count: int, random: np.random.Generator
    ) -> list[PseudoQuery]:
        """Stretches of random place and length; none of a document shorter than the shortest."""
        words = document.text.split()
        if len(words) <= self.settings.min_words:
            return []
        found = []
        for _ in range(count):
            longest = max(self.settings.min_words, min(self.settings.max_words, len(words) - 1))
            length = int(random.integers(self.settings.min_words, longest + 1))
            start = int(random.integers(0, len(words) - length + 1))
            text = " ".join(words[start : start + length])
            stays = random.random() < self.settings.left_in
            found.append(PseudoQuery(text, "" if stays else text))
        return found
