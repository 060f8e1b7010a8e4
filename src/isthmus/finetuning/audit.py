"""Audits negatives before training: how many may be relevant or copied, and examples to read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from isthmus.config.output import whole_file, writing
from isthmus.evaluation.tables import Cell, Shown, Table, escape_html
from isthmus.evaluation.tables import page as framed
from isthmus.finetuning.candidates import NOTHING, Candidates, Rows, TrainingCorpus
from isthmus.finetuning.mining import Mined, lowest_by, lowest_ranked
from isthmus.finetuning.negatives import Source
from isthmus.finetuning.pairs import LabelledQueries
from isthmus.finetuning.teachers import Teacher, padded
from isthmus.progress import track
from isthmus.records import Document

_SAMPLED = 1000  # queries: a share of 5 % is then known to about one point
_NEAR = 0.8
_MANY = 0.1  # of the negatives; a ranking that has the positives near its top is far below
_WORST, _SAMPLES = 30, 50
_WORD = re.compile(r"\w+")
Found = npt.NDArray[np.float64]  # [queries, negatives]
Place = tuple[int, int]  # in it


@dataclass(frozen=True)
class Example:
    """A negative, the query and its relevant document, and what is known of the negative."""

    query: str
    positive: Document
    negative: Document
    facts: str


@dataclass(frozen=True, repr=False)
class Audit(Shown):
    """Findings in the first epoch's negatives of a sample of queries."""

    collection: str
    judge: str  # the scores that make a negative suspicious: teacher's or source's
    suspects: int
    compared: int  # negatives whose score can be compared with the positive's
    counts: list[tuple[str, str]]
    worst: list[Example]
    near: list[Example]
    samples: list[Example]

    @property
    def verdict(self) -> str:
        """The share of suspects, with advice if it is high."""
        share = self.suspects / max(self.compared, 1)
        found = f"{share:.1%} of the negatives score no less than the positive, by the {self.judge}"
        if self.suspects <= _MANY * self.compared:
            return found
        by = " --set negatives.margin_by=teacher" if self.judge == "teacher" else ""
        return (
            f"{found}: many (above {_MANY:.0%}); they are relevant but not judged, or the "
            f"{self.judge} is too weak to tell. Read some; --set negatives.relative_margin=0.05"
            f"{by} leaves them out (in a pipeline: stages.NAME.negatives.…; in a list of sources: "
            "negatives.0.…)"
        )

    def tables(self, most: int = 5, length: int = 120) -> Iterator[str | Table]:
        """The counts, and at most so many of each of the examples, in so many characters."""
        rows = tuple((Cell(what), Cell(found)) for what, found in self.counts)
        yield Table(("negatives", "found"), rows, self.verdict, names=2)
        about = (
            f"Suspected false negatives: they score no less than a relevant document, by the "
            f"{self.judge}. Margins keep them out: absolute_margin, relative_margin, margin_by."
        )
        alike = f"Near-duplicates: at least {_NEAR:.0%} of the distinct tokens of both are shared."
        parts = (about, self.worst), (alike, self.near), ("Samples, drawn at random.", self.samples)
        columns = ("query", "relevant", "negative", "which is")
        for caption, examples in parts:
            lines = (
                (one.query, _text(one.positive), _text(one.negative), one.facts)
                for one in examples[:most]
            )
            cells = tuple(tuple(Cell(_short(text, length)) for text in line) for line in lines)
            yield Table(columns, cells, caption, names=len(columns))

    def to_dict(self) -> dict[str, Any]:
        """Counts, verdict and examples."""
        return {**asdict(self), "verdict": self.verdict}


def audit(
    mined: Mined,
    sources: Sequence[Source],
    corpus: TrainingCorpus,
    labelled: LabelledQueries,
    split: str,
    teacher: Teacher | None = None,
) -> Audit:
    """The audit of mined negatives, from a sample of queries and one pass over the documents."""
    random = np.random.default_rng(0)
    numbers = np.sort(random.permutation(len(labelled.queries))[:_SAMPLED])
    sampled = labelled.some(numbers)
    names = [type(source).__name__ for source in sources]
    counts: list[int] = [source.settings.num_negatives for source in sources]
    owners = np.repeat(names, counts)
    rows = mined.rows[numbers, : len(owners)]
    ranked_rows = np.where(mined.random[numbers, : len(owners)], NOTHING, rows)
    candidates = [Candidates(one.rows[numbers], one.scores[numbers]) for one in mined.candidates]
    by_source = np.split(ranked_rows, np.cumsum(counts)[:-1], axis=1)
    found = [_ranked(*one, sampled) for one in zip(candidates, by_source, strict=True)]
    ranks, above = (np.concatenate(parts, axis=1) for parts in zip(*found, strict=True))
    if teacher is not None:  # a file of scores has none of random documents
        above = _difference(teacher.scores(sampled, ranked_rows), lowest_by(teacher, sampled))
    alike = _likeness(corpus, rows, sampled)

    drawn = np.sort(random.permutation(rows.size)[:_SAMPLES])
    places = [_worst(above, 0.0), _worst(alike, _NEAR), [divmod(n, rows.shape[1]) for n in drawn]]
    wanted = {int(rows[place]) for some in places for place in some}
    wanted |= {sampled.positives[number][0] for some in places for number, _ in some}
    read = track(corpus.collection.documents(), "read examples", len(corpus.tokenised))
    documents = {row: document for row, document in enumerate(read) if row in wanted}

    def example(number: int, column: int) -> Example:
        place = number, column
        facts = [owners[column], f"rank {ranks[place]}" if ranks[place] else "random"]
        if np.isfinite(above[place]):
            facts.append(f"{above[place]:+.4g} above the positive")
        return Example(
            sampled.queries[number].text,
            documents[sampled.positives[number][0]],
            documents[int(rows[place])],
            ", ".join([*facts, f"likeness {alike[place]:.2f}"]),
        )

    compared, suspects = int(np.isfinite(above).sum()), int((above >= 0).sum())
    judge = "source" if teacher is None else "teacher"
    table = [
        ("training queries", f"{len(labelled.queries):,}"),
        ("sampled", f"{len(numbers):,} queries, {rows.size:,} negatives of the first epoch"),
        (f"score no less than the positive, by the {judge}", _share(suspects, compared)),
        ("nearly the words of a positive", _share(int((alike >= _NEAR).sum()), rows.size)),
        ("random, for want of candidates", _share(int((ranks == 0).sum()), rows.size)),
    ]
    relevant = padded(sampled.positives)
    for name, one in zip(names, candidates, strict=True):
        hits = int((_ranks(one.rows, relevant) > 0).sum())
        share = _share(hits, int((relevant != NOTHING).sum()))
        table.append((f"relevant documents that {name} ranks", share))
    table += [
        (f"training queries that are queries of {other} too", f"{count:,}")
        for other, count in _queries_elsewhere(corpus, labelled, split).items()
    ]
    made = ([example(*place) for place in some] for some in places)
    return Audit(corpus.spec, judge, suspects, compared, table, *made)


def _ranks(ranked: Rows, rows: Rows) -> npt.NDArray[np.int64]:
    """The rank of each row in its query's ranking; 0 where it is not there, or NOTHING."""
    same = (ranked[:, None, :] == rows[:, :, None]) & (rows != NOTHING)[:, :, None]
    return np.where(same.any(2), same.argmax(2) + 1, 0)


def _ranked(
    found: Candidates, negatives: Rows, sampled: LabelledQueries
) -> tuple[npt.NDArray[np.int64], Found]:
    """The rank of each negative, 0 of a random one, and its score above the lowest positive's."""
    ranks = _ranks(found.rows, negatives)
    lines = zip(found.rows, found.scores, sampled.positives, strict=True)
    lowest = np.array([lowest_ranked(*line) for line in lines])
    scores = np.take_along_axis(found.scores, np.maximum(ranks - 1, 0), axis=1)
    return ranks, np.where(ranks > 0, _difference(scores, lowest), np.nan)


def _difference(scores: npt.ArrayLike, positives: npt.ArrayLike) -> Found:
    """Scores [queries, negatives] less those of positives; NaN where either is unknown."""
    with np.errstate(invalid="ignore"):
        found: Found = np.subtract(scores, np.asarray(positives)[:, None], dtype=np.float64)
    return np.where(np.isfinite(found), found, np.nan)


def _likeness(corpus: TrainingCorpus, rows: Rows, sampled: LabelledQueries) -> Found:
    """The share of its distinct tokens that a negative has in common with its nearest positive."""

    @cache
    def tokens(row: int) -> frozenset[int]:
        return frozenset(corpus.tokenised.tokens(row).tolist())

    def share(row: int, positive: int) -> float:
        own, other = tokens(row), tokens(positive)
        return len(own & other) / max(len(own | other), 1)

    lines = zip(rows.tolist(), sampled.positives, strict=True)
    return np.array([[max(share(row, one) for one in own) for row in line] for line, own in lines])


def _worst(values: Found, least: float) -> list[Place]:
    """The places of the largest values, one of a query, if they are large enough."""
    known = np.where(np.isnan(values), -np.inf, values)
    columns, largest = known.argmax(1), known.max(1)
    best = [n for n in np.argsort(-largest, kind="stable") if largest[n] >= least]
    return [(int(n), int(columns[n])) for n in best[:_WORST]]


def _queries_elsewhere(
    corpus: TrainingCorpus, labelled: LabelledQueries, split: str
) -> Mapping[str, int]:
    """How many queries are of another split too, whatever their case and punctuation."""
    collection = corpus.collection
    own = [_words(query.text) for query in labelled.queries]
    found = {}
    for other in collection.splits():
        if other != split:
            judged = collection.judgements(other)
            texts = {_words(query.text) for query in collection.queries() if query.id in judged}
            found[other] = sum(text in texts for text in own)
    return found


def _words(text: str) -> str:
    return " ".join(_WORD.findall(text.casefold()))


def _share(part: int, whole: int) -> str:
    return f"{part:,} of {whole:,} ({part / whole:.1%})" if whole else "none to compare"


def _text(document: Document) -> str:
    return f"{document.id}: {document.contents()}"


def _short(text: str, length: int) -> str:
    text = " ".join(text.split())
    return text if len(text) <= length else f"{text[:length]}…"


def write_page(audit: Audit, file: Path) -> None:
    """Writes the audit, with all examples, as one HTML file, which appears whole."""
    with writing(file):
        file.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(file) as stream:
        stream.write(page(audit))


def page(audit: Audit) -> str:
    """The audit as HTML, without scripts and external files."""
    title = f"Negatives of {audit.collection}"
    tables: Iterable[Any] = audit.tables(most=_SAMPLES, length=600)
    figures = (f"<figure class=table>{one.html(inline=False)}</figure>" for one in tables)
    return framed(title, [f"<h1>{escape_html(title)}</h1>", *figures])
