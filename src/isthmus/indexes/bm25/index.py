"""The search of a BM25 index: scores are added up term by term, equal ones ordered by id."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from isthmus.indexes.arrays import best, mapped
from isthmus.indexes.bm25.analyzer import Analyzer
from isthmus.indexes.bm25.postings import FREQUENCIES, ROWS, SCORES, STARTS, open_vocabulary
from isthmus.indexes.bm25.scoring import Scores, TermScore
from isthmus.indexes.documents import DocumentStore
from isthmus.indexes.index import Index
from isthmus.indexes.integrity import parsing
from isthmus.indexes.manifest import Manifest
from isthmus.indexes.verification import read_manifest
from isthmus.records import Ranking

Rows = npt.NDArray[np.int64]


class Bm25Index(Index):
    """Lists of postings with their scores, memory-mapped."""

    store: DocumentStore

    def __init__(self, manifest: Manifest, folder: Path) -> None:
        assert manifest.bm25 is not None
        self.manifest = manifest
        self.store = DocumentStore(folder)
        self._analyzer = Analyzer(manifest.bm25)
        self._number = open_vocabulary(folder)
        # Frequencies too, which explanations alone read: a folder that is served may be replaced.
        self._starts, self._rows, self._scores, self._frequencies = (
            mapped(folder / name, folder) for name in (STARTS, ROWS, SCORES, FREQUENCIES)
        )
        self._folder = folder

    @classmethod
    def open(cls, folder: Path) -> Bm25Index:
        """The index in a folder; scores stay on disk until a query needs them."""
        return cls(read_manifest(folder, "bm25"), folder)

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

        Documents that share no term with the query score 0 and are not part of the answer. `among`
        leaves only the documents of these ids; unknown ids are ignored.
        """
        assert depth > 0
        assert len(texts) == len(query_ids)
        chosen = None if among is None else self.store.rows(among)
        with parsing(self._folder / ROWS, self._folder):
            totals = (self._totals(self._analyzer.terms(text)) for text in texts)
            answers = [highest(self.store, scores, depth, chosen) for scores in totals]
        return self.store.rankings(query_ids, answers)

    def term_scores(self, text: str, document_id: str) -> list[TermScore]:
        """What each term of a query adds to the score of one document, in the query's order."""
        row = self.store.row(document_id)
        with parsing(self._folder / ROWS, self._folder):
            counts = Counter(self._analyzer.terms(text))
            return [TermScore(term, n, *self._posting(term, row)) for term, n in counts.items()]

    def _posting(self, term: str, row: int | None) -> tuple[float, int, int]:
        """Score and frequency of a term in a row, and how many rows hold it."""
        number = self._number(term)
        if number is None:
            return 0.0, 0, 0
        first, last = (int(self._starts[place]) for place in (number, number + 1))
        found = np.flatnonzero(self._rows[first:last] == row)
        if not len(found):
            return 0.0, 0, last - first
        place = first + int(found[0])
        return float(self._scores[place]), int(self._frequencies[place]), last - first

    def _totals(self, terms: Sequence[str]) -> Scores:
        totals = np.zeros(len(self), dtype=np.float32)
        for number in map(self._number, terms):
            if number is not None:
                postings = slice(self._starts[number], self._starts[number + 1])
                np.add.at(totals, self._rows[postings], self._scores[postings])
        return totals


def highest(
    store: DocumentStore, totals: Scores, depth: int, among: Rows | None
) -> tuple[Rows, Scores]:
    """The best rows of those with a score, best first, and their scores."""
    rows = np.flatnonzero(totals > 0) if among is None else among[totals[among] > 0]
    chosen = rows[best(totals[rows], store.ranks[rows], depth)]
    return chosen, totals[chosen]
