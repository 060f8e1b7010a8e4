"""The search of a BM25 field: postings are scored by the statistics of all living documents.

Scores are those of an index built from the same documents at once, to the last bit, however
many segments they lie in. They are added up term by term; equal ones are ordered by id.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from isthmus.indexes.arrays import best, mapped
from isthmus.indexes.bm25.analyzer import Analyzer
from isthmus.indexes.bm25.postings import FREQUENCIES, LENGTHS, ROWS, STARTS, open_vocabulary
from isthmus.indexes.bm25.scoring import Scores, TermScore, inverse_frequency, norms, posting_scores
from isthmus.indexes.documents import Rows
from isthmus.indexes.integrity import parsing
from isthmus.indexes.manifest import Bm25Field
from isthmus.indexes.segment import Segment
from isthmus.indexes.vectors import Answer, Mask

_REMEMBERED = 2**26  # bytes of scored postings: terms come again from query to query


class Bm25Search:
    """The postings of all segments."""

    def __init__(self, about: Bm25Field, name: str, segments: Sequence[Segment]) -> None:
        self._about = about
        self._analyzer = Analyzer(about.settings)
        self._parts = [_Part(name, segment) for segment in segments]
        self._documents = sum(segment.living for segment in segments)
        self._average = sum(part.tokens for part in self._parts) / max(1, self._documents)
        self._scored: dict[str, list[tuple[Rows, Scores]]] = {}
        self._bytes = 0

    def has_tokens(self, text: str) -> bool:
        """Whether anything of a text is left after stop words are dropped."""
        return bool(self._analyzer.terms(text))

    def answers(
        self, texts: Sequence[str], depth: int, allowed: Sequence[Mask]
    ) -> list[list[Answer]]:
        """The best rows of each query with their scores, by segment.

        Documents that share no term with the query score 0 and are not part of the answer.
        """
        return [self._answer(self._analyzer.terms(text), depth, allowed) for text in texts]

    def term_scores(self, text: str, document_id: str) -> list[TermScore]:
        """What each term of a query adds to the score of one document, in the query's order."""
        rows = [part.segment.row(document_id) for part in self._parts]
        counts = Counter(self._analyzer.terms(text))
        return [TermScore(term, n, *self._posting(term, rows)) for term, n in counts.items()]

    def _answer(self, terms: Sequence[str], depth: int, allowed: Sequence[Mask]) -> list[Answer]:
        lists = {term: self._scores(term) for term in terms}
        found = []
        for number, (part, mask) in enumerate(zip(self._parts, allowed, strict=True)):
            totals = np.zeros(len(part.segment), dtype=np.float32)
            for term in terms:
                rows, scores = lists[term][number]
                np.add.at(totals, rows, scores)  # quicker than to read, add and write
            if mask is not None:
                totals[~mask] = 0
            rows = np.flatnonzero(totals > 0)
            chosen = rows[best(totals[rows], part.segment.ranks[rows], depth)]
            found.append((chosen, totals[chosen].astype(np.float64)))
        return found

    def _posting(self, term: str, rows: Sequence[int | None]) -> tuple[float, int, int]:
        """Score and frequency of a term in a living document, and how many hold it."""
        scored = self._scores(term)
        score, frequency = 0.0, 0
        for part, row, (holding, scores) in zip(self._parts, rows, scored, strict=True):
            if row is not None and len(place := np.flatnonzero(holding == row)):
                score = float(scores[place[0]])
                frequency = int(part.postings(term)[1][place[0]])
        return score, frequency, sum(len(holding) for holding, _ in scored)

    def _scores(self, term: str) -> list[tuple[Rows, Scores]]:
        """The living rows of each segment that contain a term, with its scores."""
        if (known := self._scored.get(term)) is not None:
            return known
        lists = [part.postings(term) for part in self._parts]
        containing = sum(len(rows) for rows, _ in lists)
        weight = inverse_frequency(containing, self._documents)
        found = []
        for part, (rows, frequencies) in zip(self._parts, lists, strict=True):
            own = part.norms(self._about, self._average)[rows] if len(rows) else np.empty(0)
            found.append((rows, posting_scores(weight, frequencies, own)))
        self._bytes += 8 * containing
        if self._bytes > _REMEMBERED:
            self._scored.clear()
            self._bytes = 8 * containing
        self._scored[term] = found
        return found


class _Part:
    """The postings of the living documents of one segment."""

    def __init__(self, name: str, segment: Segment) -> None:
        folder = segment.part(name)
        tokens = segment.about.fields[name].tokens
        assert tokens is not None
        self.segment = segment
        self._folder = folder
        self._number = open_vocabulary(folder)
        # All at once: a folder that is served may be replaced.
        self._starts, self._rows, self._frequencies, self._lengths = (
            mapped(folder / file, folder) for file in (STARTS, ROWS, FREQUENCIES, LENGTHS)
        )
        self.tokens = tokens - int(self._lengths[segment.deleted].sum(dtype=np.int64))
        self._norms: npt.NDArray[np.float64] | None = None

    def norms(self, about: Bm25Field, average: float) -> npt.NDArray[np.float64]:
        """What the length of each document adds to frequencies."""
        if self._norms is None:
            self._norms = norms(about.settings, self._lengths, average)
        return self._norms

    def postings(self, term: str) -> tuple[Rows, npt.NDArray[np.integer[Any]]]:
        """The living rows that contain a term, and how often."""
        with parsing(self._folder / ROWS, self._folder):
            number = self._number(term)
            if number is None:
                return self._rows[:0], self._frequencies[:0]
            postings = slice(self._starts[number], self._starts[number + 1])
            rows, frequencies = self._rows[postings], self._frequencies[postings]
        if not len(self.segment.deleted):
            return rows, frequencies
        lives = self.segment.lives[rows]
        return rows[lives], frequencies[lives]
