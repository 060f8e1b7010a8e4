"""Key phrases of the document: runs of words between stop words, ranked as RAKE ranks them."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np
from pydantic import Field

from isthmus.finetuning.pseudo_queries._base import PseudoQuery, PseudoQuerySource, SourceSettings
from isthmus.indexes.bm25.stop_words import stop_words
from isthmus.records import Document

_WORD_OR_BREAK = re.compile(r"\w[\w'’-]*|[^\w\s]")


class KeyPhrasesSettings(SourceSettings):
    """How many phrases make a query, and how long one may be."""

    phrases: int = Field(2, ge=1, description="joined to one query")
    max_words: int = Field(4, ge=1, description="of a phrase")


class KeyPhrases(PseudoQuerySource):
    """Keyword queries: a word scores by the lengths of its phrases over how often it occurs.

    (Rose et al., Automatic keyword extraction from individual documents, 2010.)
    """

    Settings = KeyPhrasesSettings
    settings: KeyPhrasesSettings

    def draw(
        self, document: Document, count: int, random: np.random.Generator
    ) -> list[PseudoQuery]:
        """Queries of phrases drawn by their scores; they stay in the document."""
        phrases = self._phrases(document.text)
        degree, frequency = Counter[str](), Counter[str]()
        for phrase in phrases:
            for word in phrase:
                degree[word] += len(phrase)
                frequency[word] += 1
        scores = {
            " ".join(phrase): sum(degree[word] / frequency[word] for word in phrase)
            for phrase in phrases
        }
        size = self.settings.phrases
        if len(scores) < size:
            return []
        names, weights = list(scores), np.array(list(scores.values()))
        found = [
            random.choice(len(names), size, replace=False, p=weights / weights.sum())
            for _ in range(count)
        ]
        return [PseudoQuery(" ".join(names[number] for number in numbers)) for numbers in found]

    def _phrases(self, text: str) -> list[tuple[str, ...]]:
        found, current = [], list[str]()
        dropped = stop_words("english", many=True)
        for word in [*_WORD_OR_BREAK.findall(text.lower()), "."]:
            if word[0].isalnum() and word not in dropped:
                current.append(word)
                continue
            if 0 < len(current) <= self.settings.max_words:
                found.append(tuple(current))
            current = []
        return found
