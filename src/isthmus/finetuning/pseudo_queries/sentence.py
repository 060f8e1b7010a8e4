"""A sentence of the document, which is left out of it except for one in ten."""

from __future__ import annotations

import numpy as np
from pydantic import Field

from isthmus.finetuning.pseudo_queries._base import PseudoQuery, PseudoQuerySource, SourceSettings
from isthmus.records import Document
from isthmus.text.sentences import sentence_starts, word_count

_FEWEST = 2  # sentences: one alone leaves no document


class SentenceSettings(SourceSettings):
    """Which sentences are drawn, and how many stay in their document."""

    left_in: float = Field(0.1, ge=0, le=1, description="share of sentences that are not left out")
    min_words: int = Field(4, ge=1, description="shorter sentences are not drawn")


class Sentence(PseudoQuerySource):
    """Sentences by rule; a document of a single one has none to give."""

    Settings = SentenceSettings
    settings: SentenceSettings

    def draw(
        self, document: Document, count: int, random: np.random.Generator
    ) -> list[PseudoQuery]:
        """Different sentences of enough words, in random order."""
        starts = sentence_starts(document.text)
        if len(starts) < _FEWEST:
            return []
        parts = [
            document.text[start:end].strip()
            for start, end in zip(starts, [*starts[1:], len(document.text)], strict=True)
        ]
        long = [part for part in parts if word_count(part) >= self.settings.min_words]
        chosen = [long[number] for number in random.permutation(len(long))[:count]]
        kept = random.random(len(chosen)) < self.settings.left_in
        return [
            PseudoQuery(text, "" if stays else text)
            for text, stays in zip(chosen, kept, strict=True)
        ]
