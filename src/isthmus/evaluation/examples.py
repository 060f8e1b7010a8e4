"""Rank 1 of several systems compared: queries to which their first documents differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic import BaseModel, ConfigDict

from isthmus.evaluation.tables import Cell, Table, format_score
from isthmus.records import Judgements, Run


class FirstHit(BaseModel):
    """A system's first document for a query; None of a judgement: it has none."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    document: str
    judgement: int | None
    text: str = ""


class Example(BaseModel):
    """One query, and what each system has at rank 1; None: nothing."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    query: str
    text: str
    measure: str
    scores: dict[str, float]
    """By system, the measure of this query."""
    hits: dict[str, FirstHit | None]

    def table(self) -> Table:
        """One row per system."""
        rows = tuple(
            (
                Cell(system),
                Cell(format_score(self.scores[system])),
                *map(Cell, _shown(hit)),
            )
            for system, hit in self.hits.items()
        )
        columns = ("system", self.measure, "judged", "document", "text")
        return Table(columns, rows, f"{self.query}: “{self.text}”", names=len(columns))


def _shown(hit: FirstHit | None) -> tuple[str, str, str]:
    if hit is None:
        return "–", "–", ""
    judged = {None: "not judged", 0: "not relevant (0)"}
    return judged.get(hit.judgement, f"relevant ({hit.judgement})"), hit.document, hit.text


def examples(
    runs: Sequence[Run],
    judged: Judgements,
    scores: Mapping[str, Mapping[str, float]],
    measure: str,
    count: int,
    drop_self: bool = False,
) -> list[Example]:
    """The `count` queries with the widest scores to whose first documents the systems differ.

    They come without any text.
    """
    firsts = {run.name: _first_hits(run, drop_self) for run in runs}
    widths = {
        query: max(values) - min(values)
        for query in sorted(next(iter(scores.values())))
        if len({of.get(query) for of in firsts.values()}) > 1
        and (values := [of[query] for of in scores.values()])
    }
    found = []
    for query in sorted(widths, key=lambda query: -widths[query])[:count]:
        grades = judged.get(query, {})
        hits = {
            system: FirstHit(document=of[query], judgement=grades.get(of[query]))
            if query in of
            else None
            for system, of in firsts.items()
        }
        each = {system: scores[system][query] for system in firsts}
        found.append(Example(query=query, text="", measure=measure, scores=each, hits=hits))
    return found


def _first_hits(run: Run, drop_self: bool) -> dict[str, str]:
    """By query, the document at rank 1; with `drop_self`, not the query itself."""
    found = {}
    for query, ranking in run.rankings.items():
        documents = (one for one in ranking.document_ids if not (drop_self and one == query))
        if (first := next(documents, None)) is not None:
            found[query] = first
    return found
