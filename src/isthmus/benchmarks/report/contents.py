"""What a report holds, and all of it but the page: terminal, markdown, LaTeX, JSON."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Group, RenderableType

from isthmus.benchmarks.report.comparisons import Estimate
from isthmus.benchmarks.report.coverage import CoverageCurves
from isthmus.benchmarks.report.plots import Figure
from isthmus.benchmarks.report.score_tables import ScoreTable
from isthmus.benchmarks.report.settings import ReportSettings
from isthmus.benchmarks.report.summary_tables import decision_table, finding_table, verdict_table
from isthmus.benchmarks.report.verdicts import Finding, Verdict
from isthmus.benchmarks.report.wins import WinsAndLosses
from isthmus.evaluation.tables import Table, escape_markdown, plain_text


@dataclass(frozen=True)
class BenchmarkReport:
    """What a benchmark found, as far as its cells are done."""

    title: str
    summary: str
    method: tuple[str, ...]
    settings: ReportSettings
    verdicts: tuple[Verdict, ...]
    tables: tuple[ScoreTable, ...]
    costs: dict[str, tuple[Table, ...]]
    """By task."""
    coverage: tuple[CoverageCurves, ...]
    expected: Table | None
    failures: Table | None
    figures: tuple[Figure, ...]
    wins: tuple[WinsAndLosses, ...]

    def markdown(self) -> str:
        """All tables and verdicts as GitHub renders them."""
        parts = [f"# {escape_markdown(self.title)}", escape_markdown(self.summary)]
        for title, tables in self._sections():
            parts += [f"## {title}", *(table.markdown() for table in tables)]
        parts += ["## How this was computed", *self.method]
        return "\n\n".join(part.strip() for part in parts) + "\n"

    def latex(self) -> str:
        """All tables as LaTeX floats; they need the package booktabs."""
        return "\n".join(table.latex() for _, tables in self._sections() for table in tables)

    def to_json(self) -> dict[str, Any]:
        """Verdicts, tables, coverage and examples as plain values; `comparisons_tsv` has pairs."""
        values = {
            "title": self.title,
            "summary": self.summary,
            "settings": self.settings.model_dump(mode="json"),
            "verdicts": [_verdict_values(one) for one in self.verdicts],
            "tables": [_table_values(one) for one in self.tables],
            "coverage": [asdict(one) for one in self.coverage],
            "wins": [asdict(one) for one in self.wins],
        }
        plain: dict[str, Any] = _plain(values)
        return plain

    def comparisons_tsv(self) -> str:
        """A line per pair of starts and column of every table, with the p-values of all tests."""
        written = io.StringIO()
        writer = csv.writer(written, delimiter="\t", lineterminator="\n")
        named = ("table", "kind", "task", "collection", "measure", "first", "second")
        pairs = [(table, pair) for table in self.tables for pair in table.comparisons.pairs]
        for number, (table, pair) in enumerate(pairs):
            column = pair.column
            values = {
                **_estimate_values(pair.estimate),
                "corrected_p": pair.corrected_p_value,
                "significant": pair.significant,
            }
            if not number:
                writer.writerow([*named, *values])
            place = (column.kind, column.task, column.collection, column.measure)
            numbers = (
                f"{v:.6g}" if isinstance(v, float) else v for v in _plain([*values.values()])
            )
            writer.writerow([table.title, *place, pair.first, pair.second, *numbers])
        return written.getvalue()

    def __rich__(self) -> RenderableType:
        measure = self.tables[0].measure if self.tables else ""
        first = [one.table for one in self.tables if one.measure == measure and not one.zero_shot]
        shown = [decision_table(self.verdicts)] if self.verdicts else []
        return Group(self.summary, *first, *shown)

    def __repr__(self) -> str:
        return plain_text(self)

    def _repr_html_(self) -> str:
        return "".join(one.table.html() for one in self.tables)

    def _verdict_tables(self) -> list[Table | None]:
        if not self.verdicts:
            return []
        chosen = self.verdicts, self.settings
        return [verdict_table(*chosen), finding_table(*chosen)]

    def _sections(self) -> list[tuple[str, Sequence[Table]]]:
        sections: list[tuple[str, Sequence[Table | None]]] = [
            ("Verdicts", self._verdict_tables()),
            ("Scores", [one.table for one in self.tables]),
            ("Costs", [table for tables in self.costs.values() for table in tables]),
            ("Input token coverage", [one.table() for one in self.coverage]),
            ("What the papers report", [self.expected]),
            ("Failed cells", [self.failures]),
        ]
        found = [(title, [one for one in tables if one]) for title, tables in sections]
        return [(title, tables) for title, tables in found if tables]


def _verdict_values(one: Verdict) -> dict[str, Any]:
    return {
        "name": one.name,
        "statement": one.claim.statement,
        "paper": one.claim.paper,
        "decision": one.decision,
        "reason": one.reason,
        "complete": one.complete,
        "costs": None if one.costs is None else one.costs.costs,
        "overall": None if one.overall is None else _finding_values(one.overall),
        "findings": [_finding_values(found) for found in one.findings],
    }


def _finding_values(found: Finding) -> dict[str, Any]:
    return {
        "place": found.place,
        "without": found.without,
        "corrected_p_value": found.corrected_p_value,
        "interval": found.interval,
        "bound": found.bound,
        "detectable": found.detectable,
        **({} if found.estimate is None else _estimate_values(found.estimate)),
    }


def _table_values(one: ScoreTable) -> dict[str, Any]:
    return {
        "title": one.title,
        "kind": one.kind,
        "measure": one.measure,
        "columns": one.table.full_columns,
        "rows": [[asdict(cell) for cell in row] for row in one.table.rows],
        "caption": one.table.caption,
    }


def _estimate_values(found: Estimate) -> dict[str, Any]:
    values: dict[str, Any] = {
        "difference": found.queries.difference,
        "standardised": found.queries.standardised,
        "queries": found.number_of_queries,
        "seeds": found.number_of_seeds,
    }
    for name in ("queries", "seeds", "both"):
        effect = getattr(found, name)
        known = not math.isnan(effect.error)
        values[f"p_over_{name}"] = effect.p_value if known else None
    return values


def _plain(value: Any) -> Any:
    """The value as JSON holds it: what is not finite is null."""
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
