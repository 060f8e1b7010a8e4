"""BM25 over segments: postings are scored by the statistics of all living documents.

Scores are those of an index built anew from the documents that are there, to the last bit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from isthmus.indexes.arrays import mapped
from isthmus.indexes.bm25.analyzer import Analyzer
from isthmus.indexes.bm25.index import highest
from isthmus.indexes.bm25.postings import FREQUENCIES, LENGTHS, ROWS, STARTS, open_vocabulary
from isthmus.indexes.bm25.scoring import Scores, TermScore, inverse_frequency, posting_scores
from isthmus.indexes.documents import DocumentStore
from isthmus.indexes.index import Index
from isthmus.indexes.integrity import parsing
from isthmus.indexes.manifest import SEGMENTS, Manifest
from isthmus.indexes.segments.living import LivingDocuments, Part, Rows, best_of, read_deleted
from isthmus.indexes.verification import read_manifest
from isthmus.records import Ranking


class SegmentedBm25Index(Index):
    """Segments searched one after the other, without the documents deleted since."""

    def __init__(self, manifest: Manifest, folder: Path) -> None:
        assert manifest.bm25 is not None
        self.manifest = manifest
        self._folder = folder
        self._settings = manifest.bm25
        self._analyzer = Analyzer(manifest.bm25)
        self._segments = [
            _Segment(folder / SEGMENTS / one.name, read_deleted(folder, one))
            for one in manifest.segments or ()
        ]
        self.store = LivingDocuments([segment.part for segment in self._segments])
        self._average = sum(one.tokens for one in self._segments) / max(1, len(self))

    @classmethod
    def open(cls, folder: Path) -> SegmentedBm25Index:
        """The index in a folder, with the segments that its manifest names."""
        return cls(read_manifest(folder), folder)

    def has_tokens(self, text: str) -> bool:
        """Whether anything of a text is left after stop words are dropped."""
        return bool(self._analyzer.terms(text))

    def search(
        self,
        texts: Sequence[str],
        depth: int,
        query_ids: Sequence[str],
        among: Collection[str] | None = None,
    ) -> list[Ranking]:
        """The `depth` documents of highest score per query, equal ones by document id.

        Documents that share no term with the query are not part of the answer. `among` leaves
        only the documents of these ids; unknown ids are ignored.
        """
        chosen = [None if among is None else one.part.store.rows(among) for one in self._segments]
        found = []
        for text, query_id in zip(texts, query_ids, strict=True):
            entries: list[tuple[str, float]] = []
            with parsing(self._folder / SEGMENTS, self._folder):
                totals = self._totals(self._analyzer.terms(text))
            for one, sums, rows in zip(self._segments, totals, chosen, strict=True):
                best, scores = highest(one.part.store, sums, depth, rows)
                entries += zip(one.part.store.ids(best), scores.tolist(), strict=True)
            found.append(best_of(query_id, entries, depth))
        return found

    def term_scores(self, text: str, document_id: str) -> list[TermScore]:
        """What each term of a query adds to the score of one document, in the query's order."""
        rows = [one.part.store.row(document_id) for one in self._segments]
        with parsing(self._folder / SEGMENTS, self._folder):
            counts = Counter(self._analyzer.terms(text))
            return [TermScore(term, n, *self._posting(term, rows)) for term, n in counts.items()]

    def _posting(self, term: str, rows: Sequence[int | None]) -> tuple[float, int, int]:
        """Score and frequency of a term in a living document, and how many hold it."""
        scored = self._scored(term)
        score, frequency = 0.0, 0
        for one, row, (holding, scores) in zip(self._segments, rows, scored, strict=True):
            place = np.flatnonzero(holding == row)
            if row is not None and len(place):
                score = float(scores[place[0]])
                frequency = int(one.postings(term)[1][place[0]])
        return score, frequency, sum(len(holding) for holding, _ in scored)

    def _totals(self, terms: Sequence[str]) -> list[Scores]:
        """The scores of all rows of each segment; 0 where a document is deleted."""
        lists = {term: self._scored(term) for term in terms}
        totals = [np.zeros(len(one.part.store), dtype=np.float32) for one in self._segments]
        for term in terms:
            for sums, (rows, scores) in zip(totals, lists[term], strict=True):
                np.add.at(sums, rows, scores)
        return totals

    def _scored(self, term: str) -> list[tuple[Rows, Scores]]:
        """The living rows of each segment that contain a term, with its scores."""
        found = [one.postings(term) for one in self._segments]
        containing = sum(len(rows) for rows, _ in found)
        if not containing:
            return [(rows, np.empty(0, dtype=np.float32)) for rows, _ in found]
        weight = inverse_frequency(containing, len(self))
        return [
            (
                rows,
                posting_scores(
                    self._settings, weight, frequencies, one.lengths[rows], self._average
                ),
            )
            for one, (rows, frequencies) in zip(self._segments, found, strict=True)
        ]


class _Segment:
    """The postings of the living documents of one segment."""

    def __init__(self, folder: Path, deleted: Rows) -> None:
        read_manifest(folder, "bm25")
        self.part = Part(DocumentStore(folder), deleted)
        self._whole = not len(deleted)
        self._number = open_vocabulary(folder)
        self._starts, self._rows, self._frequencies, self.lengths = (
            mapped(folder / name, folder) for name in (STARTS, ROWS, FREQUENCIES, LENGTHS)
        )
        self.tokens = int(self.lengths.sum(dtype=np.int64)) - int(
            self.lengths[deleted].sum(dtype=np.int64)
        )

    def postings(self, term: str) -> tuple[Rows, npt.NDArray[np.integer[Any]]]:
        """The living rows that contain a term, and how often."""
        number = self._number(term)
        if number is None:
            return self._rows[:0], self._frequencies[:0]
        postings = slice(self._starts[number], self._starts[number + 1])
        rows, frequencies = self._rows[postings], self._frequencies[postings]
        if self._whole:
            return rows, frequencies
        lives = self.part.lives[rows]
        return rows[lives], frequencies[lives]
