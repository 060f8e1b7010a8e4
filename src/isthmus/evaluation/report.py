"""What an evaluation found: means, intervals, tests, and the scores they come from."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from isthmus.config import Overrides
from isthmus.config.output import writing
from isthmus.errors import InputError, needing
from isthmus.evaluation.examples import Example
from isthmus.evaluation.settings import EvaluationSettings
from isthmus.evaluation.statistics import Comparisons, compare, mean_intervals
from isthmus.evaluation.tables import Cell, Shown, Table, format_score

_TESTS = {"t_test": "paired two-sided t-test", "randomisation": "paired randomisation test"}
_CORRECTIONS = {"bonferroni": "Bonferroni", "holm": "Holm", "none": "no correction"}


@dataclass(frozen=True)
class RunCounts:
    """What was counted and what was not, for one system."""

    answered: int
    """Judged queries with at least one result."""
    missing: int
    """Judged queries without a result: they score 0."""
    unjudged: int
    """Queries of the run without judgements: left out."""
    judged_documents: int
    """Judged results, over all judged queries."""
    depth: int
    """Results of the longest ranking."""
    dropped_self: int
    """Results dropped because the document is the query itself."""


class Report(Shown, BaseModel):
    """Systems compared on judged queries; every table is a mapping by measure, then by system.

    With several collections the numbers are those of the first, and `also` holds a report of each
    other one.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    systems: tuple[str, ...]
    measures: tuple[str, ...]
    queries: int
    means: dict[str, dict[str, float]]
    intervals: dict[str, dict[str, tuple[float, float]]]
    tests: dict[str, Comparisons]
    counts: dict[str, RunCounts]
    settings: EvaluationSettings
    per_query: dict[str, dict[str, dict[str, float]]]
    notes: tuple[str, ...] = ()
    """Sentences about what the numbers may be mistaken for; part of the caption."""
    examples: tuple[Example, ...] = ()
    """Queries to which the systems' first documents differ, where they were wanted."""
    name: str = ""
    """Name of the collection."""
    also: dict[str, Report] = {}
    """Reports of further collections, by name."""

    @property
    def collections(self) -> dict[str, Report]:
        """The report of each collection, by name; this one is the first."""
        return {self.name: self, **self.also}

    @property
    def letters(self) -> dict[str, str]:
        """The letter by which the tables name each system."""
        return self.tests[self.measures[0]].letters

    def best(self, measure: str) -> set[str]:
        """The system with the highest mean; all of them where several share it."""
        highest = max(self.means[measure].values())
        return {system for system, mean in self.means[measure].items() if mean == highest}

    def averages(self, measure: str) -> dict[str, float]:
        """Each system's mean over the collections, every collection with the same weight."""
        every = [report.means[measure] for report in self.collections.values()]
        return {system: fmean(means[system] for means in every) for system in self.systems}

    def best_on(self, measure: str) -> dict[str, int]:
        """On how many collections each system has the highest mean; a shared one counts for all."""
        best = [report.best(measure) for report in self.collections.values()]
        return {system: sum(system in winners for winners in best) for system in self.systems}

    def table(self, measure: str | None = None) -> Table:
        """The means, letters of the systems that are significantly worse, and intervals.

        Args:
            measure: Measure whose means on all collections are compared (default: all measures on
                this collection, or the first measure where there are several collections).

        """
        if self.also:
            return self._of_collections(measure or self.measures[0])
        measures = self.measures if measure is None else (measure,)
        rows = [
            (
                Cell(self.letters[system]),
                Cell(system),
                *(self._cell(system, one, interval=True) for one in measures),
            )
            for system in self.systems
        ]
        settings = self.settings
        note = (
            f"Ranges: {settings.confidence:.0%} bootstrap interval of the mean "
            f"({settings.bootstrap_samples:,} samples, seed {settings.seed})."
        )
        columns = ("#", "system", *measures)
        return Table(columns, tuple(rows), self._caption(), names=2, interval_note=note)

    def _of_collections(self, measure: str) -> Table:
        """One row per system, one column per collection, the average and the count of best ones."""
        averages, best_on = self.averages(measure), self.best_on(measure)
        every, several = self.collections, len(self.systems) > 1
        rows = [
            (
                Cell(self.letters[system]),
                Cell(system),
                *(report._cell(system, measure) for report in every.values()),
                Cell(
                    format_score(averages[system]),
                    best=several and averages[system] == max(averages.values()),
                ),
                Cell(
                    f"{best_on[system]} of {len(every)}",
                    best=several and best_on[system] == max(best_on.values()),
                ),
            )
            for system in self.systems
        ]
        judged = ", ".join(f"{name} {one.queries:,}" for name, one in every.items())
        letters = self._letters()
        caption = [
            f"{measure}. Judged queries: {judged}.",
            *([f"On each collection, {letters[0].lower()}{letters[1:]}"] if letters else []),
            "Average: every collection with the same weight; not tested. "
            "Best on: collections where the mean is the highest.",
            *dict.fromkeys(note for report in every.values() for note in report.notes),
        ]
        columns = ("#", "system", *every, "average", "best on")
        return Table(columns, tuple(rows), " ".join(caption), names=2)

    def tables(self) -> list[Table]:
        """Its table (one for each measure where there are several collections) and the examples."""
        found = [self.table(one) for one in self.measures] if self.also else [self.table()]
        return [*found, *(one.table() for one in self.examples)]

    def _cell(self, system: str, measure: str, interval: bool = False) -> Cell:
        low, high = self.intervals[measure][system]
        return Cell(
            format_score(self.means[measure][system]),
            letters=self.tests[measure].beats[system],
            interval=f"{format_score(low)}–{format_score(high)}" if interval else "",
            best=len(self.systems) > 1 and system in self.best(measure),
        )

    def _caption(self) -> str:
        sentences = [
            f"Means over {self.queries:,} judged queries.",
            *filter(None, [self._letters()]),
        ]
        for system, counts in self.counts.items():
            of_documents = not all(name.startswith("Answer@") for name in self.measures)
            if of_documents and not counts.judged_documents:
                sentences.append(f"Not one document that {system} retrieved is judged.")
        if self.settings.drop_self:
            sentences.append("Results whose document is the query itself were dropped.")
        return " ".join([*sentences, *self.notes])

    def _letters(self) -> str:
        """A sentence on what the letters mean; "" where there is nothing to compare."""
        settings, pairs = self.settings, len(self.tests[self.measures[0]].pairs)
        if not pairs:
            return ""
        test = _TESTS[settings.test]
        if settings.test == "randomisation":
            test += f" with {settings.randomisation_samples:,} samples"
        over = f"over {pairs} pair{'s' * (pairs > 1)} per measure"
        return (
            f"Letters: significantly better than the systems of those letters ({test}, "
            f"{_CORRECTIONS[settings.correction]} {over}, level {settings.alpha:g})."
        )

    def to_dataframe(self) -> Any:
        """The means as a pandas DataFrame: a row per system, a column per measure.

        With several collections, the rows are of collection and system.
        """
        with needing("pandas", extra="report", needed_for="Report.to_dataframe()"):
            import pandas
        frames = {
            name: pandas.DataFrame(one.means).rename_axis(index="system", columns="measure")
            for name, one in self.collections.items()
        }
        return pandas.concat(frames, names=["collection"]) if self.also else frames[self.name]

    def markdown(self) -> str:
        """Its tables as GitHub renders them."""
        return "\n".join(table.markdown() for table in self.tables())

    def latex(self) -> str:
        """Its tables as LaTeX floats, without the examples; they need the package booktabs."""
        count = len(self.measures) if self.also else 1
        return "\n".join(table.latex() for table in self.tables()[:count])

    def per_query_tsv(self) -> str:
        """One line per measure and query, one column per system, every digit kept."""
        written = io.StringIO()
        writer = csv.writer(written, delimiter="\t", lineterminator="\n")
        writer.writerow([*(["collection"] if self.also else []), "measure", "query", *self.systems])
        for name, report in self.collections.items():
            for measure, by_system in report.per_query.items():
                for query in by_system[self.systems[0]]:
                    values = [by_system[system][query] for system in self.systems]
                    writer.writerow([*([name] if self.also else []), measure, query, *values])
        return written.getvalue()

    def to_json(self) -> str:
        """Everything, per-query scores included; `from_json` gives an equal report back."""
        return self.model_dump_json(indent=2)

    @classmethod
    def from_json(cls, text: str, where: str = "report.json") -> Self:
        """The report that `to_json` wrote."""
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            place = ".".join(map(str, first["loc"]))
            raise InputError(
                f"{where}: not a report: {place}{': ' if place else ''}{first['msg']}",
                "check the path, or evaluate again (isthmus evaluate -o writes report.json)",
            ) from None

    def write(self, folder: Path) -> None:
        """Writes report.json, table.md, table.tex and per_query.tsv into a folder that is there."""
        files = {
            "report.json": f"{self.to_json()}\n",
            "table.md": self.markdown(),
            "table.tex": self.latex(),
            "per_query.tsv": self.per_query_tsv(),
        }
        with writing(folder):
            for name, text in files.items():
                (folder / name).write_text(text, encoding="utf-8")


def summarise(
    scores: Mapping[str, Mapping[str, Mapping[str, float]]],
    settings: EvaluationSettings | Overrides = None,
    counts: Mapping[str, RunCounts] | None = None,
    notes: Sequence[str] = (),
    pairs: Sequence[tuple[str, str]] | None = None,
) -> Report:
    """The report of scores by system, measure and query, wherever they were computed.

    All systems need the same measures and the same queries. `pairs` are those of the systems that
    are tested; None: all of them.
    """
    settings = EvaluationSettings.given(settings)
    systems = tuple(scores)
    assert systems, "a report compares at least one system"
    measures = tuple(scores[systems[0]])
    by_measure = {
        measure: {system: dict(scores[system][measure]) for system in systems}
        for measure in measures
    }
    tests = {
        measure: compare(
            of, settings.test, settings.correction, settings.alpha,
            settings.randomisation_samples, settings.seed, pairs,
        )
        for measure, of in by_measure.items()
    }  # fmt: skip
    queries = list(by_measure[measures[0]][systems[0]])
    rows = [
        [of[system][query] for query in queries] for of in by_measure.values() for system in systems
    ]
    intervals = iter(
        mean_intervals(rows, settings.bootstrap_samples, settings.confidence, settings.seed)
    )
    return Report(
        systems=systems,
        measures=measures,
        queries=len(queries),
        means={
            measure: {system: sum(of[system].values()) / len(queries) for system in systems}
            for measure, of in by_measure.items()
        },
        intervals={
            measure: {system: _pair(*next(intervals)) for system in systems} for measure in measures
        },
        tests=tests,
        counts=dict(counts or {}),
        settings=settings,
        per_query=by_measure,
        notes=tuple(notes),
    )


def _pair(low: float, high: float) -> tuple[float, float]:
    return float(low), float(high)
