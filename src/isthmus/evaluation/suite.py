"""Systems compared on several collections: averages, and on how many each is best."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from isthmus.config.output import writing
from isthmus.evaluation.report import Report
from isthmus.evaluation.tables import Cell, Shown, Table, format_score


@dataclass(frozen=True, repr=False)
class SuiteReport(Shown):
    """A report for each collection, by its name; all of the same systems and measures."""

    reports: Mapping[str, Report]

    @property
    def systems(self) -> tuple[str, ...]:
        """The systems compared, in the order of every report."""
        return self._first.systems

    @property
    def measures(self) -> tuple[str, ...]:
        """The measures, in the order of every report."""
        return self._first.measures

    @property
    def _first(self) -> Report:
        return next(iter(self.reports.values()))

    def averages(self, measure: str) -> dict[str, float]:
        """Each system's mean over the collections, every collection with the same weight."""
        return {
            system: fmean(report.means[measure][system] for report in self.reports.values())
            for system in self.systems
        }

    def best_on(self, measure: str) -> dict[str, int]:
        """On how many collections each system has the highest mean; a shared one counts for all."""
        best = [report.best(measure) for report in self.reports.values()]
        return {system: sum(system in winners for winners in best) for system in self.systems}

    def table(self, measure: str) -> Table:
        """One row per system, one column per collection, the average and the count of best ones."""
        averages, best_on = self.averages(measure), self.best_on(measure)
        several = len(self.systems) > 1
        rows = [
            (
                Cell(self._first.letters[system]),
                Cell(system),
                *(
                    Cell(
                        format_score(report.means[measure][system]),
                        letters=report.comparisons[measure].beats[system],
                        best=several and system in report.best(measure),
                    )
                    for report in self.reports.values()
                ),
                Cell(
                    format_score(averages[system]),
                    best=several and averages[system] == max(averages.values()),
                ),
                Cell(
                    f"{best_on[system]} of {len(self.reports)}",
                    best=several and best_on[system] == max(best_on.values()),
                ),
            )
            for system in self.systems
        ]
        columns = ("#", "system", *self.reports, "average", "best on")
        return Table(columns, tuple(rows), self._caption(measure), names=2)

    def _caption(self, measure: str) -> str:
        tests = self._first.tests()
        judged = ", ".join(f"{name} {one.queries:,}" for name, one in self.reports.items())
        return " ".join(
            [
                f"{measure}. Judged queries: {judged}.",
                *([f"On each collection, {tests[0].lower()}{tests[1:]}"] if tests else []),
                "Average: every collection with the same weight; not tested. "
                "Best on: collections where the mean is the highest.",
            ]
        )

    def tables(self) -> list[Table]:
        """A table per measure."""
        return [self.table(measure) for measure in self.measures]

    def to_json(self) -> str:
        """Averages, counts and every collection's report, per-query scores included."""
        return json.dumps(
            {
                "averages": {measure: self.averages(measure) for measure in self.measures},
                "best_on": {measure: self.best_on(measure) for measure in self.measures},
                "reports": {
                    name: report.model_dump(mode="json") for name, report in self.reports.items()
                },
            },
            indent=2,
            ensure_ascii=False,
        )

    def write(self, folder: Path) -> None:
        """Writes suite.json, table.md and table.tex into a claimed folder."""
        tables = self.tables()
        files = {
            "suite.json": f"{self.to_json()}\n",
            "table.md": "\n".join(table.markdown() for table in tables),
            "table.tex": "\n".join(table.latex() for table in tables),
        }
        with writing(folder):
            for name, text in files.items():
                (folder / name).write_text(text, encoding="utf-8")
