"""Audits negatives before training: how many may be relevant or copied, and examples to read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.console import Group
from rich.table import Table
from rich.text import Text

from isthmus.config.output import whole_file, writing
from isthmus.evaluation.tables import page as framed
from isthmus.finetuning.mining.candidates import NOTHING, TrainingCorpus
from isthmus.finetuning.mining.mine import Mined, lowest_by, lowest_ranked
from isthmus.finetuning.negatives import Source
from isthmus.finetuning.pairs import LabelledQueries
from isthmus.finetuning.teachers import Teacher
from isthmus.progress import track
from isthmus.records import Document

_SAMPLED = 1000  # queries: a share of 5 % is then known to about one point
_NEAR = 0.8
_MANY = 0.1  # of the negatives; a ranking that has the positives near its top is far below
_WORST, _SAMPLES = 30, 10
_CUT = 600  # characters of a text that are shown
_WORD = re.compile(r"\w+")
Found = npt.NDArray[np.float64]  # [queries, negatives]


@dataclass(frozen=True)
class Example:
    """A query with its relevant documents, and some of its negatives with what is known of them."""

    query: str
    positives: list[Document]
    negatives: list[tuple[str, Document]]


@dataclass(frozen=True)
class Audit:
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
        return f"{found}: {self.advice}" if self.advice else found

    @property
    def advice(self) -> str:
        """What many suspects mean, and the setting that keeps them out; "" if they are few."""
        if self.suspects <= _MANY * self.compared:
            return ""
        by = " --set negatives.margin_by=teacher" if self.judge == "teacher" else ""
        return (
            f"many (above {_MANY:.0%}); they are relevant but not judged, or the "
            f"{self.judge} is too weak to tell. Read some; --set negatives.relative_margin=0.05"
            f"{by} leaves them out (in a pipeline: stages.NAME.negatives.…; in a list of sources: "
            "negatives.0.…)"
        )

    def __rich__(self) -> Group:
        """The counts and the worst cases, for a terminal."""
        counts = Table("negatives", "found", title=f"negatives of {self.collection}")
        for what, found in self.counts:
            counts.add_row(what, found)
        table = Table("query", "its positive", "its negative", "which is", title="read these first")
        for one in self.worst[:5]:
            [(facts, negative)] = one.negatives
            texts = (one.query, one.positives[0].contents(), negative.contents(), facts)
            table.add_row(*(Text(_short(text, 120)) for text in texts))
        said = [Text(self.verdict)] if self.advice else []
        return Group(counts, *said, *([table] if self.worst else []))

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
    order = np.random.default_rng(0).permutation(len(labelled.queries))
    numbers = np.sort(order[:_SAMPLED])
    sampled = labelled.some(numbers.tolist())
    names = [type(source).__module__.rpartition(".")[2] for source in sources]
    owners = np.repeat(np.arange(len(sources)), [one.settings.num_negatives for one in sources])
    rows = mined.rows[numbers, : len(owners)]
    ranks, above = _ranked(mined, owners, numbers, sampled)
    if teacher is not None:  # a file of scores has none of random documents
        scores = teacher.scores(sampled, np.where(ranks > 0, rows, NOTHING).astype(np.int32))
        above = _difference(scores, lowest_by(teacher, sampled)[:, None])
    alike = _likeness(corpus, rows, sampled)

    shown = np.searchsorted(numbers, np.sort(order[:_SAMPLES])).tolist()
    chosen = [_worst(above, 0.0), _worst(alike, _NEAR)]
    chosen.append([(line, range(len(owners))) for line in shown])
    wanted = {int(rows[line, one]) for some in chosen for line, columns in some for one in columns}
    wanted |= {row for some in chosen for line, _ in some for row in sampled.positives[line]}
    read = track(corpus.collection.documents(), "read examples", len(corpus.tokenised))
    documents = {row: document for row, document in enumerate(read) if row in wanted}

    def facts(line: int, column: int) -> str:
        rank = int(ranks[line, column])
        told = [names[owners[column]], f"rank {rank}" if rank else "random"]
        if np.isfinite(above[line, column]):
            told.append(f"{above[line, column]:+.4g} above the positive")
        return ", ".join([*told, f"likeness {alike[line, column]:.2f}"])

    def example(line: int, columns: Iterable[int]) -> Example:
        return Example(
            sampled.queries[line].text,
            [documents[row] for row in sampled.positives[line]],
            [(facts(line, one), documents[int(rows[line, one])]) for one in columns],
        )

    compared, suspects = int(np.isfinite(above).sum()), int((above >= 0).sum())
    judge = "source" if teacher is None else "teacher"
    counts = [
        ("training queries", f"{len(labelled.queries):,}"),
        ("sampled", f"{len(numbers):,} queries, {rows.size:,} negatives of the first epoch"),
        (f"score no less than the positive, by the {judge}", _share(suspects, compared)),
        ("nearly the words of a positive", _share(int((alike >= _NEAR).sum()), rows.size)),
        ("random, for want of candidates", _share(int((ranks == 0).sum()), rows.size)),
    ]
    for name, candidates in zip(names, mined.candidates, strict=True):
        pairs = zip(sampled.positives, candidates.rows[numbers], strict=True)
        found = [np.isin(positives, ranked) for positives, ranked in pairs]
        told = _share(sum(one.sum() for one in found), sum(map(len, found)))
        counts.append((f"relevant documents that {name} ranks", told))
    counts += [
        (f"training queries that are queries of {other} too", f"{count:,}")
        for other, count in _queries_elsewhere(corpus, labelled, split).items()
    ]
    made = [[example(*one) for one in some] for some in chosen]
    return Audit(corpus.spec, judge, suspects, compared, counts, *made)


def _ranked(
    mined: Mined, owners: npt.NDArray[np.intp], numbers: Iterable[int], sampled: LabelledQueries
) -> tuple[npt.NDArray[np.int64], Found]:
    """The rank of each negative, 0 of a random one, and its source's score above the positive's."""
    ranks = np.zeros((len(sampled.queries), len(owners)), dtype=np.int64)
    above = np.full(ranks.shape, np.nan)
    for line, (number, positives) in enumerate(zip(numbers, sampled.positives, strict=True)):
        for place, candidates in enumerate(mined.candidates):
            ranked, scores = candidates.rows[number], candidates.scores[number]
            lowest = lowest_ranked(ranked, scores, positives)
            for column in np.flatnonzero(owners == place):
                [found] = np.nonzero(ranked == mined.rows[number, column])
                if len(found) and not mined.random[number, column]:
                    ranks[line, column] = found[0] + 1
                    above[line, column] = _difference(scores[found[0]], lowest)
    return ranks, above


def _difference(scores: npt.ArrayLike, positives: npt.ArrayLike) -> Found:
    """Scores less those of positives; NaN where either is unknown."""
    found: Found = np.subtract(scores, positives, dtype=np.float64)
    return np.where(np.isfinite(found), found, np.nan)


def _likeness(
    corpus: TrainingCorpus, rows: npt.NDArray[np.int32], sampled: LabelledQueries
) -> Found:
    """The share of its distinct tokens that a negative has in common with its nearest positive."""

    def tokens(row: int) -> frozenset[int]:
        return frozenset(corpus.tokenised.tokens(row).tolist())

    found = np.zeros(rows.shape)
    for line, positives in enumerate(sampled.positives):
        texts = [tokens(row) for row in positives]
        for column, own in enumerate(map(tokens, rows[line].tolist())):
            found[line, column] = max(len(own & one) / max(len(own | one), 1) for one in texts)
    return found


def _worst(values: Found, least: float) -> list[tuple[int, Iterable[int]]]:
    """The queries with the largest values, and the place of each one's, if it is large enough."""
    known = np.where(np.isnan(values), -np.inf, values)
    columns, largest = known.argmax(1), known.max(1)
    lines = [line for line in np.argsort(-largest, kind="stable") if largest[line] >= least]
    return [(int(line), [int(columns[line])]) for line in lines[:_WORST]]


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


def write_page(audit: Audit, file: Path) -> None:
    """Writes the audit as one HTML file, which appears whole."""
    with writing(file):
        file.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(file) as stream:
        stream.write(page(audit))


def page(audit: Audit) -> str:
    """The audit as HTML, without scripts and external files."""
    title = f"Negatives of {audit.collection}"
    rows = (f"<tr><td>{escape(what)}<td>{escape(found)}" for what, found in audit.counts)
    about = (
        "They score no less than the query's lowest scored relevant document, by the "
        f"{audit.judge}. A good re-ranker is a better judge than the source they come from. "
        "Margins keep them out: <code>absolute_margin</code>, <code>relative_margin</code>, "
        "<code>margin_by</code>."
    )
    alike = f"At least {_NEAR:.0%} of the distinct tokens of both are shared."
    parts = [
        f"<h1>{escape(title)}</h1><table>{''.join(rows)}</table>",
        f"<p><b>{escape(audit.verdict)}</b></p>" if audit.advice else "",
        *_section("Suspected false negatives", about, audit.worst),
        *_section("Near-duplicates of a relevant document", alike, audit.near),
        *_section("Samples to read", "Drawn at random.", audit.samples),
    ]
    return framed(title, parts)


def _section(title: str, about: str, examples: Sequence[Example]) -> Iterator[str]:
    yield f"<h2>{title}</h2><p>{about}</p>" + ("" if examples else "<p>None found.</p>")
    for one in examples:
        passages = [_passage("positive", "relevant", document) for document in one.positives]
        passages += [_passage("negative", facts, document) for facts, document in one.negatives]
        summary = f"<summary><b>{escape(one.query)}</b></summary>"
        yield f"<details class=example>{summary}{''.join(passages)}</details>"


def _passage(kind: str, facts: str, document: Document) -> str:
    title = f"<b>{escape(document.title)}</b> " if document.title else ""
    return (
        f"<p><span class={kind}>{kind}</span> <span class=quiet>{escape(document.id)}, "
        f"{escape(facts)}</span><br>{title}{escape(_short(document.text, _CUT))}</p>"
    )


def _short(text: str, length: int) -> str:
    text = " ".join(text.split())
    return text if len(text) <= length else f"{text[:length]}…"
