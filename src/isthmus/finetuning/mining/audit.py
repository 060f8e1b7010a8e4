"""Audits negatives before training: which may be relevant, copied or leaked."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from isthmus.finetuning.mining.candidates import NOTHING, Candidates, TrainingCorpus
from isthmus.finetuning.mining.leaks import Leak, find_leaks
from isthmus.finetuning.mining.margins import lowest_by, lowest_ranked
from isthmus.finetuning.mining.mine import Mined
from isthmus.finetuning.negatives._base import Source
from isthmus.finetuning.pairs import LabelledQueries
from isthmus.finetuning.teachers._base import Teacher, padded
from isthmus.records import Document
from isthmus.text.corpus import TokenisedCorpus

SAMPLED = 1000  # queries: a share of 5 % is then known to about one point
NEAR = 0.8
EDGES = (1, 11, 21, 51, 101, 201, 501, 1001)
WORST = 30
_MANY = 0.1  # of the negatives; a ranking that has the positives near its top is far below
SAMPLES = 10


@dataclass(frozen=True)
class Negative:
    """A document as a query's negative: its source, rank and scores."""

    number: int  # of the query
    row: int
    source: str
    rank: int | None  # None: drawn at random
    score: float | None
    teacher: float | None
    above: float | None  # its score less that of the query's lowest scored positive
    likeness: float  # 1: the words of a positive


@dataclass(frozen=True)
class Drawn:
    """The ranks of one source's negatives over all epochs, and its ranks of positives."""

    source: str
    random: int
    ranks: list[int]  # how many from each of EDGES to the next
    positive_ranks: list[int]  # of relevant documents
    positives_not_ranked: int


@dataclass(frozen=True)
class Audit:
    """Findings in the first epoch's negatives of a sample of queries."""

    collection: str
    labelled: LabelledQueries
    sampled: int
    negatives: list[Negative]
    judge: str  # the scores that make a negative suspicious: teacher's or source's
    copied_documents: int
    removed_copies: int
    leaks: list[Leak]
    drawn: list[Drawn]
    samples: list[int]  # numbers of queries to read
    documents: Mapping[int, Document]  # by row: those that are shown

    @property
    def compared(self) -> int:
        """The number of negatives whose score can be compared with the positive's."""
        return sum(negative.above is not None for negative in self.negatives)

    @property
    def suspects(self) -> list[Negative]:
        """Negatives that score no less than the positive, the highest above it first."""
        above = [one for one in self.negatives if one.above is not None and one.above >= 0]
        return sorted(above, key=lambda one: -(one.above or 0.0))

    @property
    def near_duplicates(self) -> list[Negative]:
        """Negatives with nearly the words of a positive, the nearest first."""
        near = [one for one in self.negatives if one.likeness >= NEAR]
        return sorted(near, key=lambda one: -one.likeness)

    @property
    def verdict(self) -> str:
        """The share of suspects, with advice if it is high."""
        share = len(self.suspects) / max(self.compared, 1)
        found = f"{share:.1%} of the negatives score no less than the positive, by the {self.judge}"
        return f"{found}: {self.advice}" if self.advice else found

    @property
    def advice(self) -> str:
        """What many suspects mean, and the setting that keeps them out; "" if they are few."""
        if len(self.suspects) <= _MANY * self.compared:
            return ""
        by = " --set negatives.margin_by=teacher" if self.judge == "teacher" else ""
        return (
            f"many (above {_MANY:.0%}); they are relevant but not judged, or the "
            f"{self.judge} is too weak to tell. Read some; --set negatives.relative_margin=0.05"
            f"{by} leaves them out (in a pipeline: stages.NAME.negatives.…; in a list of sources: "
            "negatives.0.…)"
        )

    @property
    def to_read(self) -> list[Negative]:
        """The negatives worth reading: the worst, and the samples."""
        samples = [one for one in self.negatives if one.number in self.samples]
        return [*worst(self.suspects), *worst(self.near_duplicates), *samples]


def worst(ordered: Sequence[Negative]) -> list[Negative]:
    """The first few, at most one of each query."""
    first: dict[int, Negative] = {}
    for one in ordered:
        first.setdefault(one.number, one)
    return list(first.values())[:WORST]


def audit(
    mined: Mined,
    sources: Sequence[Source],
    corpus: TrainingCorpus,
    labelled: LabelledQueries,
    split: str,
    teacher: Teacher | None = None,
) -> Audit:
    """The audit of mined negatives, from a sample of queries and one pass over the documents."""
    order = np.random.default_rng(0).permutation(len(labelled.queries))
    counts = _Counts(mined, sources, corpus.tokenised, labelled)
    numbers = np.sort(order[:SAMPLED])
    for number in numbers.tolist():
        counts.add(number)
    negatives = counts.negatives
    if teacher is not None:
        negatives = _taught(negatives, labelled, teacher)
    _, times = np.unique(corpus.tokenised.keys, return_counts=True)
    found = Audit(
        collection=corpus.spec,
        labelled=labelled,
        sampled=len(numbers),
        negatives=negatives,
        judge="source" if teacher is None else "teacher",
        copied_documents=int(times[times > 1].sum()),
        removed_copies=counts.removed_copies,
        leaks=[],
        drawn=counts.drawn(),
        samples=sorted(order[:SAMPLES].tolist()),
        documents={},
    )
    rows = {one.row for one in found.to_read}
    rows |= {row for one in found.to_read for row in labelled.positives[one.number]}
    leaks, documents = find_leaks(corpus, labelled, split, rows)
    return replace(found, leaks=leaks, documents=documents)


class _Counts:
    """What the sampled queries have in common, counted query after query."""

    def __init__(
        self,
        mined: Mined,
        sources: Sequence[Source],
        corpus: TokenisedCorpus,
        labelled: LabelledQueries,
    ) -> None:
        self.mined, self.corpus, self.labelled = mined, corpus, labelled
        self.names = _names(sources)
        sizes = [source.settings.num_negatives for source in sources]
        self.owners = np.repeat(np.arange(len(sources)), sizes).tolist()  # of an epoch's columns
        self.negatives: list[Negative] = []
        self.removed_copies = 0
        self._ranks: list[list[int | None]] = [[] for _ in sources]
        self._positive_ranks: list[list[int | None]] = [[] for _ in sources]

    def add(self, number: int) -> None:
        """Counts one query."""
        positives = self.labelled.positives[number]
        rankings = [_Ranking(one, number, positives) for one in self.mined.candidates]
        for place, ranking in enumerate(rankings):
            self._positive_ranks[place] += [ranking.rank(row) for row in positives]
            self.removed_copies += self._copies(ranking, positives)
        texts = [self._words(row) for row in positives]
        rows, random = self.mined.rows[number].tolist(), self.mined.random[number].tolist()
        for column, (row, by_chance) in enumerate(zip(rows, random, strict=True)):
            owner = self.owners[column % len(self.owners)]
            ranking = rankings[owner]
            rank = None if by_chance else ranking.rank(row)
            self._ranks[owner].append(rank)
            if column < len(self.owners):
                score = None if rank is None else ranking.score(rank)
                own = self._words(row)
                self.negatives.append(
                    Negative(
                        number=number,
                        row=row,
                        source=self.names[owner],
                        rank=rank,
                        score=score,
                        teacher=None,
                        above=_difference(score, ranking.lowest),
                        likeness=max(len(own & one) / max(len(own | one), 1) for one in texts),
                    )
                )

    def drawn(self) -> list[Drawn]:
        """The ranks of each source's negatives, of the queries counted so far."""
        pairs = zip(self.names, self._ranks, self._positive_ranks, strict=True)
        return [
            Drawn(
                name,
                ranks.count(None),
                _histogram(ranks),
                _histogram(positives),
                positives.count(None),
            )
            for name, ranks, positives in pairs
        ]

    def _words(self, row: int) -> frozenset[int]:
        return frozenset(self.corpus[row].tokens.tolist())

    def _copies(self, ranking: _Ranking, positives: Sequence[int]) -> int:
        rows = np.array([row for row in ranking.rows if row not in positives], dtype=np.int64)
        return int(np.isin(self.corpus.keys[rows], self.corpus.keys[list(positives)]).sum())


class _Ranking:
    """One query's ranking by one source."""

    def __init__(self, candidates: Candidates, number: int, positives: Sequence[int]) -> None:
        rows, self._scores = candidates.rows[number], candidates.scores[number]
        self.lowest = lowest_ranked(rows, self._scores, positives)
        self.rows = [row for row in rows.tolist() if row != NOTHING]
        self._ranks = {row: rank for rank, row in enumerate(self.rows, start=1)}

    def rank(self, row: int) -> int | None:
        """The rank of a row, from 1; None if it is not ranked."""
        return self._ranks.get(row)

    def score(self, rank: int) -> float:
        """The score of the document at a rank."""
        return float(self._scores[rank - 1])


def _taught(
    negatives: Sequence[Negative], labelled: LabelledQueries, teacher: Teacher
) -> list[Negative]:
    """The negatives with the teacher's scores."""
    by_query: dict[int, list[Negative]] = {}
    for one in negatives:
        by_query.setdefault(one.number, []).append(one)
    scored = labelled.some(list(by_query))
    # Without random documents: a file of scores has none of them.
    rows = [[one.row if one.rank else NOTHING for one in of] for of in by_query.values()]
    scores = teacher.scores(scored, padded(rows))
    lowest = lowest_by(teacher, scored)
    return [
        replace(one, teacher=_known(score), above=_difference(_known(score), float(least)))
        for of, line, least in zip(by_query.values(), scores, lowest, strict=True)
        for one, score in zip(of, line, strict=True)
    ]


def _names(sources: Sequence[Source]) -> list[str]:
    names = [type(source).__module__.rpartition(".")[2] for source in sources]
    if len(set(names)) == len(names):
        return names
    return [f"{name} {place}" for place, name in enumerate(names, start=1)]


def _known(score: float) -> float | None:
    return float(score) if math.isfinite(score) else None


def _difference(score: float | None, positive: float) -> float | None:
    """The difference of two scores; None where either is unknown."""
    return None if score is None or not math.isfinite(positive) else score - positive


def _histogram(ranks: Sequence[int | None]) -> list[int]:
    places = np.searchsorted(EDGES, [rank for rank in ranks if rank is not None], side="right") - 1
    counts: list[int] = np.bincount(places, minlength=len(EDGES)).tolist()
    return counts
