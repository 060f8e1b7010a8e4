"""Why a document matched a query: what an explanation holds, and how it is shown."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

from isthmus.evaluation.tables import Cell, Shown, Table
from isthmus.records import Passage

Kind = Literal["bm25", "sparse", "dense", "hybrid", "reranked"]
_LONGEST = 160  # characters of a sentence that a table shows


@dataclass(frozen=True, slots=True)
class TermPart:
    """A term of the query: its weights in query and document, whose product is added to the score.

    For BM25, the weight in the query is how often it is there; `frequency` is that in the document,
    `documents` are those that hold the term, or the passages where an index is of these.
    """

    term: str
    query_weight: float
    document_weight: float
    contribution: float
    frequency: int | None = None
    documents: int | None = None


@dataclass(frozen=True, slots=True)
class SentencePart:
    """A sentence of the document, or its title, and how much the score falls without it.

    None where the model does not read that far.
    """

    text: str
    contribution: float | None


@dataclass(frozen=True, slots=True)
class FusedPart:
    """What one retriever adds to a fused score: its weight times its vote."""

    weight: float
    vote: float
    contribution: float
    explanation: Explanation


@dataclass(frozen=True, slots=True)
class FusedParts:
    """How scores were made comparable, and what each retriever added."""

    name: str
    parts: tuple[FusedPart, ...]


@dataclass(frozen=True, slots=True, repr=False)
class Explanation(Shown):
    """Why a document has its score for a query, by the kind of retriever.

    `terms` (bm25, sparse) and the parts of `fusion` (hybrid) add up to the score. `sentences`
    (dense, re-ranked) do not: each says how much lower the score is without it. What a retriever
    has none of is None, and `notes` say why. `rank` is None below the first 1,000.
    """

    query: str
    id: str
    title: str
    kind: Kind
    model: str | None = None
    score: float | None = None
    rank: int | None = None
    passage: Passage | None = None
    terms: tuple[TermPart, ...] | None = None
    sentences: tuple[SentencePart, ...] | None = None
    fusion: FusedParts | None = None
    before: Explanation | None = None
    notes: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Everything, as JSON has it."""
        return _with_numbers(asdict(self))

    def to_json(self) -> str:
        """Everything, as a text."""
        return json.dumps(self.as_dict(), ensure_ascii=False, indent=2)

    @property
    def heading(self) -> str:
        """One line: what was found, by what, and how well."""
        name = f"{self.id} “{self.title}”" if self.title else self.id
        model = f" of {self.model}" if self.model else ""
        score = "no score" if self.score is None else f"score {self.score:.4f}"
        rank = "below the first 1,000" if self.rank is None else f"rank {self.rank}"
        return f"{name} for “{self.query}” by {self.kind}{model}: {score}, {rank}"

    def tables(self) -> Iterator[str | Table]:
        """Lines and tables, in the order in which they are shown."""
        yield self.heading
        if (one := self.passage) is not None:
            below = f" below “{one.heading}”" if one.heading else ""
            yield f"its passage {one.number}{below}, characters {one.start:,}–{one.end:,}, counts"
        if self.terms is not None:
            unit = "documents" if self.passage is None else "passages"
            yield _term_table(self.terms, self.score, unit)
        if self.sentences is not None:
            yield _sentence_table(self.sentences)
        if self.fusion is not None:
            yield _fusion_table(self.fusion, self.score)
        yield from self.notes
        if self.fusion is not None:
            for part in self.fusion.parts:
                yield from part.explanation.tables()
        if self.before is not None:
            yield "before it was read again:"
            yield from self.before.tables()


def _with_numbers(values: dict[str, Any]) -> dict[str, Any]:
    """The values with the number of the passage, which its id tells."""
    if (passage := values["passage"]) is not None:
        number = int(passage["id"].rpartition("#")[2])
        kept = {name: passage[name] for name in ("id", "heading", "start", "end", "text")}
        values["passage"] = {"number": number, **kept}
    if values["before"] is not None:
        _with_numbers(values["before"])
    for part in (values["fusion"] or {}).get("parts", ()):
        _with_numbers(part["explanation"])
    return values


def _term_table(terms: tuple[TermPart, ...], score: float | None, unit: str) -> Table:
    counted = any(one.documents is not None for one in terms)
    columns = ("term", "in the query", "in the document", "adds")
    more = ("times", f"{unit} with it") if counted else ()
    rows = tuple(
        (
            Cell(one.term),
            *(Cell(f"{x:.4g}") for x in (one.query_weight, one.document_weight)),
            Cell(f"{one.contribution:.4f}", quiet=not one.contribution),
            *(Cell(_number(x)) for x in (one.frequency, one.documents) if counted),
        )
        for one in terms
    )
    total = "no score" if score is None else f"the score, {score:.4f}"
    return Table((*columns, *more), rows, f"Products of both weights; their sum is {total}.")


def _sentence_table(sentences: tuple[SentencePart, ...]) -> Table:
    best = max((one.contribution for one in sentences if one.contribution is not None), default=0)
    rows = tuple(
        (
            Cell(" ".join(_cut(one.text).split())),
            Cell("not read", quiet=True)
            if one.contribution is None
            else Cell(f"{one.contribution:+.4f}", best=one.contribution == best > 0),
        )
        for one in sentences
    )
    caption = "How much the score falls without a sentence; they need not add up to it."
    return Table(("sentence", "adds"), rows, caption)


def _fusion_table(fusion: FusedParts, score: float | None) -> Table:
    rows = tuple(
        (
            Cell(" of ".join(filter(None, (one.explanation.kind, one.explanation.model)))),
            Cell(_number(one.explanation.rank)),
            Cell("–" if one.explanation.score is None else f"{one.explanation.score:.4f}"),
            *(Cell(f"{x:.4f}") for x in (one.weight, one.vote, one.contribution)),
        )
        for one in fusion.parts
    )
    total = "no score" if score is None else f"the score, {score:.4f}"
    caption = f"{fusion.name}: weight times vote of each retriever; their sum is {total}."
    return Table(("retriever", "rank", "score", "weight", "vote", "adds"), rows, caption)


def _number(value: int | None) -> str:
    return "–" if value is None else f"{value:,}"


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} …"
