"""Zero-shot suites: the same systems over several collections, with average and best-on."""

from __future__ import annotations

from collections.abc import Mapping

from isthmus.errors import MismatchError, SettingsError, choices
from isthmus.evaluation.measures import parse_measure
from isthmus.evaluation.report import Report
from isthmus.evaluation.tables import Cell, Table, format_score


def suite_table(reports: Mapping[str, Report], measure: str) -> Table:
    """One row per system, one column per collection, then the average and "best on".

    The average weighs every collection alike, however many queries it has. "Best on" counts the
    collections on which no system has a higher mean; several that share it all count.
    """
    assert reports, "a suite has at least one collection"
    name = _check(reports, measure)
    systems = next(iter(reports.values())).systems
    means = {s: [report.means[name][s] for report in reports.values()] for s in systems}
    averages = {system: sum(values) / len(values) for system, values in means.items()}
    best_on = {s: sum(s in report.best(name) for report in reports.values()) for s in systems}
    rows = [
        (
            Cell(system),
            *(
                Cell(format_score(mean), best=system in report.best(name))
                for mean, report in zip(means[system], reports.values(), strict=True)
            ),
            Cell(format_score(averages[system]), best=averages[system] == max(averages.values())),
            Cell(str(best_on[system]), best=best_on[system] == max(best_on.values())),
        )
        for system in systems
    ]
    caption = f"{name} on {len(reports)} collections; the average weighs each collection alike."
    return Table(("system", *reports, "average", "best on"), tuple(rows), caption)


def _check(reports: Mapping[str, Report], measure: str) -> str:
    """The measure's printed name, when all reports hold it for the same systems."""
    reference, first = next(iter(reports.items()))
    for collection, report in reports.items():
        name = measure if measure in report.means else str(parse_measure(measure, where="measure"))
        if name not in report.means:
            raise SettingsError(
                f"{measure!r} was not measured on {collection!r}",
                where=f"report of {collection!r}",
                allowed=choices(measure, report.measures),
                remedy="choose one of these, or evaluate the collection with this measure",
            )
        if set(report.systems) != set(first.systems):
            different = sorted(set(report.systems) ^ set(first.systems))
            raise MismatchError(
                f"{reference!r} and {collection!r} compare different systems: "
                f"{', '.join(map(repr, different))} stand in one alone",
                where=f"report of {collection!r}",
                allowed="the same systems on every collection",
                remedy="evaluate every system on every collection under the same name",
            )
    return name
