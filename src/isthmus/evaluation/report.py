"""What an evaluation found: means, intervals, tests, and the scores they come from."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from pydantic import BaseModel, ConfigDict, ValidationError

from isthmus.config import Overrides
from isthmus.errors import InputError
from isthmus.evaluation.first_hits import Example
from isthmus.evaluation.settings import EvaluationSettings
from isthmus.evaluation.significance import Comparisons, compare, mean_intervals
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
    """Systems compared over one set of judged queries; tables by measure, then by system."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    systems: tuple[str, ...]
    measures: tuple[str, ...]
    queries: int
    means: dict[str, dict[str, float]]
    intervals: dict[str, dict[str, tuple[float, float]]]
    comparisons: dict[str, Comparisons]
    counts: dict[str, RunCounts]
    settings: EvaluationSettings
    per_query: dict[str, dict[str, dict[str, float]]]
    notes: tuple[str, ...] = ()
    """Sentences about what the numbers may be mistaken for; part of the caption."""
    examples: tuple[Example, ...] = ()
    """Queries to which the systems' first documents differ, where they were wanted."""

    @property
    def letters(self) -> dict[str, str]:
        """The letter by which the tables name each system."""
        return self.comparisons[self.measures[0]].letters

    def best(self, measure: str) -> set[str]:
        """The system with the highest mean; all of them where several share it."""
        highest = max(self.means[measure].values())
        return {system for system, mean in self.means[measure].items() if mean == highest}

    def table(self) -> Table:
        """One row per system, one column per measure: mean, letters of beaten systems, interval."""
        rows = [
            (
                Cell(self.letters[system]),
                Cell(system),
                *(self._cell(system, measure) for measure in self.measures),
            )
            for system in self.systems
        ]
        settings = self.settings
        note = (
            f"Ranges: {settings.confidence:.0%} bootstrap interval of the mean "
            f"({settings.bootstrap_samples:,} samples, seed {settings.seed})."
        )
        columns = ("#", "system", *self.measures)
        return Table(columns, tuple(rows), self._caption(), names=2, interval_note=note)

    def tables(self) -> list[Table]:
        """Its table, and those of the examples."""
        return [self.table(), *self.example_tables()]

    def example_tables(self) -> list[Table]:
        """A table for each example."""
        return [example.table() for example in self.examples]

    def _cell(self, system: str, measure: str) -> Cell:
        low, high = self.intervals[measure][system]
        return Cell(
            format_score(self.means[measure][system]),
            letters=self.comparisons[measure].beats[system],
            interval=f"{format_score(low)}–{format_score(high)}",
            best=len(self.systems) > 1 and system in self.best(measure),
        )

    def _caption(self) -> str:
        settings = self.settings
        sentences = [f"Means over {self.queries:,} judged queries.", *filter(None, [self.tests()])]
        for system, counts in self.counts.items():
            of_documents = not all(name.startswith("Answer@") for name in self.measures)
            if of_documents and not counts.judged_documents:
                sentences.append(f"Not one document that {system} retrieved is judged.")
        if settings.drop_self:
            sentences.append("Results whose document is the query itself were dropped.")
        return " ".join([*sentences, *self.notes])

    def tests(self) -> str:
        """A sentence on what the letters mean; "" where there is nothing to compare."""
        settings, pairs = self.settings, len(self.comparisons[self.measures[0]].pairs)
        if not pairs:
            return ""
        test = _TESTS[settings.test]
        if settings.test == "randomisation":
            test += f" with {settings.randomisation_samples:,} samples"
        return (
            f"Letters: significantly better than the systems of those letters ({test}, "
            f"{_CORRECTIONS[settings.correction]} over {pairs} pairs per measure, "
            f"level {settings.alpha:g})."
        )

    def per_query_tsv(self) -> str:
        """One line per measure and query, one column per system, every digit kept."""
        written = io.StringIO()
        writer = csv.writer(written, delimiter="\t", lineterminator="\n")
        writer.writerow(["measure", "query", *self.systems])
        for measure, by_system in self.per_query.items():
            for query in by_system[self.systems[0]]:
                values = [by_system[system][query] for system in self.systems]
                writer.writerow([measure, query, *values])
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
                "check the path, or evaluate the runs again (isthmus evaluate --output writes "
                "report.json)",
            ) from None


def summarise(
    scores: Mapping[str, Mapping[str, Mapping[str, float]]],
    settings: EvaluationSettings | Overrides = None,
    counts: Mapping[str, RunCounts] | None = None,
    notes: Sequence[str] = (),
) -> Report:
    """The report of scores by system, measure and query, wherever they were computed.

    `per_query` and `answer_accuracy` give one system's scores; all systems need the same
    measures and the same queries.
    """
    settings = EvaluationSettings.given(settings)
    systems = tuple(scores)
    assert systems, "a report compares at least one system"
    measures = tuple(scores[systems[0]])
    by_measure = {
        measure: {system: dict(scores[system][measure]) for system in systems}
        for measure in measures
    }
    comparisons = {
        measure: compare(
            of, settings.test, settings.correction, settings.alpha,
            settings.randomisation_samples, settings.seed,
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
        comparisons=comparisons,
        counts=dict(counts or {}),
        settings=settings,
        per_query=by_measure,
        notes=tuple(notes),
    )


def _pair(low: float, high: float) -> tuple[float, float]:
    return float(low), float(high)
