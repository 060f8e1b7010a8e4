"""`isthmus benchmark report`: from a folder of cells to tables, verdicts and plots."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import xxhash
from rich.console import Group, RenderableType

from isthmus.benchmarks.protocol.cells import CELLS, CellResult, read_result
from isthmus.benchmarks.protocol.settings import read_protocol
from isthmus.benchmarks.report.plots import Plots, plots
from isthmus.benchmarks.report.results import RESULTS, ResultsFile, read_results
from isthmus.benchmarks.report.scores import Outcomes
from isthmus.benchmarks.report.settings import ReportSettings
from isthmus.benchmarks.report.tables import (
    CoverageCurves,
    ScoreTable,
    cost_tables,
    coverage_curves,
    expected_table,
    failure_table,
    finding_table,
    score_tables,
    verdict_table,
)
from isthmus.benchmarks.report.verdicts import Finding, Verdict, verdicts
from isthmus.config import Overrides
from isthmus.config.output import (
    SNAPSHOT,
    read_snapshot,
    reserved,
    whole_file,
    write_json,
    write_snapshot,
    writing,
)
from isthmus.errors import InputError, OutputError
from isthmus.evaluation.tables import Table, escape_html, escape_markdown, page, plain_text
from isthmus.progress import notice, track

REPORT = "report"
_METHOD = (
    "Scores are means over seeds of means over all judged queries; ± is the standard deviation "
    "from pre-training seed to pre-training seed, each the mean of its fine-tuning seeds. "
    "Differences are tested by paired two-sided t-tests: to the variance over queries, of scores "
    "averaged over seeds, comes what seeds add to it, pooled over all starts of a column (quasi-F, "
    "Clark 1973; Satterthwaite's degrees of freedom). So they speak of the methods, on other "
    "queries and with other seeds. All pairs of starts in all columns of a table are one family, "
    "all places of a claim another, and the averages of all claims a third."
)


@dataclass(frozen=True)
class BenchmarkReport:
    """What a benchmark found, as far as its cells are done."""

    title: str
    summary: str
    settings: ReportSettings
    verdicts: tuple[Verdict, ...]
    tables: tuple[ScoreTable, ...]
    costs: tuple[Table, ...]
    coverage: tuple[CoverageCurves, ...]
    expected: Table | None
    failures: Table | None
    plots: Plots

    def markdown(self) -> str:
        """All tables and verdicts as GitHub renders them."""
        parts = [f"# {escape_markdown(self.title)}", escape_markdown(self.summary)]
        for title, tables in self._sections():
            parts += [f"## {title}", *(table.markdown() for table in tables)]
        parts += ["## How this was computed", _METHOD]
        return "\n\n".join(part.strip() for part in parts) + "\n"

    def html(self) -> str:
        """The report as one page that needs nothing but itself."""
        parts = [f"<header><h1>{escape_html(self.title)}</h1>",
                 f"<p>{escape_html(self.summary)}</p></header>"]  # fmt: skip
        for title, tables in self._sections():
            parts.append(f"<section><h2>{title}</h2>")
            for table in tables:
                figure = f'<figure class="table scores">{table.html(inline=False)}</figure>'
                parts.append(figure)
            parts.append("</section>")
        for title, svg in self.plots:
            parts.append(f"<figure class=plots><figcaption>{escape_html(title)}</figcaption>")
            parts.append(f"{svg}</figure>")
        return page(self.title, [*parts, f"<p>{_METHOD}</p>"])

    def latex(self) -> str:
        """All tables as LaTeX floats; they need the package booktabs."""
        return "\n".join(table.latex() for _, tables in self._sections() for table in tables)

    def to_json(self) -> dict[str, Any]:
        """Verdicts, tables and coverage as plain values."""
        values = {
            "title": self.title,
            "summary": self.summary,
            "settings": self.settings.model_dump(mode="json"),
            "verdicts": [_verdict_values(one) for one in self.verdicts],
            "tables": [_table_values(one) for one in self.tables],
            "coverage": [asdict(one) for one in self.coverage],
        }
        plain: dict[str, Any] = _plain(values)
        return plain

    def __rich__(self) -> RenderableType:
        measure = self.tables[0].measure if self.tables else ""
        first = [one.table for one in self.tables if one.measure == measure and not one.zero_shot]
        shown = [verdict_table(self.verdicts, self.settings)] if self.verdicts else []
        return Group(self.summary, *first, *shown)

    def __repr__(self) -> str:
        return plain_text(self)

    def _repr_html_(self) -> str:
        return "".join(one.table.html() for one in self.tables)

    def _sections(self) -> list[tuple[str, list[Table]]]:
        chosen = self.verdicts, self.settings
        sections: list[tuple[str, Sequence[Table | None]]] = [
            ("Verdicts", [verdict_table(*chosen), finding_table(*chosen)] if self.verdicts else []),
            ("Scores", [one.table for one in self.tables]),
            ("Costs", self.costs),
            ("Input token coverage", [one.table() for one in self.coverage]),
            ("What the papers report", [self.expected]),
            ("Failed cells", [self.failures]),
        ]
        found = [(title, [one for one in tables if one]) for title, tables in sections]
        return [(title, tables) for title, tables in found if tables]


def benchmark_report(
    folder: str | Path,
    output: str | Path | None = None,
    *,
    settings: ReportSettings | Overrides = None,
) -> BenchmarkReport:
    """The report of a folder of `isthmus benchmark run`, however many of its cells are done.

    `folder` may also be the results.parquet of an earlier report. Writes report.html, report.md,
    report.tex, report.json and results.parquet into `output`, or FOLDER/report; an earlier report
    there is replaced.
    """
    settings = ReportSettings.given(settings)
    folder = Path(folder)
    if folder.is_file():
        name, protocol, cells = read_results(folder)
    else:
        name, protocol = read_protocol(folder)
        cells = _cells(folder)
    target = folder.absolute().parent / REPORT if folder.is_file() else folder / REPORT
    target = target if output is None else Path(output)
    _refuse_other_folder(target)
    kept = ResultsFile(name, protocol)
    digest = xxhash.xxh3_128()
    outcomes = Outcomes(protocol, kept.keeping(_counted(cells, digest)))
    if outcomes.others:
        others = (
            f"{outcomes.others:,} cells are of other starts, tasks or seeds than the protocol's"
        )
        notice(f"{others}: left out")
    if not outcomes.cells:
        raise InputError(
            f"no run of the benchmark in {str(folder)!r} is finished",
            "run the benchmark, or copy the results here from the machine that ran it",
        )
    report = assemble(name, outcomes, settings)
    identity = {"settings": settings.model_dump(mode="json"), "cells": digest.hexdigest()}
    with reserved(target), writing(target):
        target.mkdir(parents=True, exist_ok=True)
        for file, content in (
            ("report.html", report.html()),
            ("report.md", report.markdown()),
            ("report.tex", report.latex()),
        ):
            with whole_file(target / file) as stream:
                stream.write(content)
        write_json(target / "report.json", report.to_json())
        kept.write(target / RESULTS)
        decisions = {one.name: one.decision for one in report.verdicts}
        write_snapshot(target, settings.verb, identity, {"verdicts": decisions})
    return report


def assemble(name: str, outcomes: Outcomes, settings: ReportSettings) -> BenchmarkReport:
    """The report of outcomes that were read already; nothing is written."""
    found, coverage = verdicts(outcomes, settings), coverage_curves(outcomes)
    return BenchmarkReport(
        title=f"Benchmark {name}" if name else "Benchmark",
        summary=_summary(outcomes),
        settings=settings,
        verdicts=tuple(found),
        tables=tuple(score_tables(outcomes, settings)),
        costs=tuple(cost_tables(outcomes)),
        coverage=tuple(coverage),
        expected=expected_table(outcomes),
        failures=failure_table(outcomes),
        plots=plots(outcomes, settings, found, coverage),
    )


def _cells(folder: Path) -> Iterator[CellResult]:
    """Every result in a folder, one after the other."""
    found = sorted((folder / CELLS).glob("*.json"))
    files = [file for file in found if not file.name.startswith(".")]  # of file systems
    for file in track(files, "reading cells", total=len(files), unit="cell"):
        yield read_result(file)


def _counted(cells: Iterator[CellResult], digest: xxhash.xxh3_128) -> Iterator[CellResult]:
    for result in cells:
        means = {name: test.measures for name, test in result.tests.items()}
        digest.update(repr((result.cell.name, result.settings, result.status, means)).encode())
        yield result


def _refuse_other_folder(target: Path) -> None:
    """Refuses a folder that holds anything but an earlier report."""
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return
    verb = ""
    if target.is_dir() and (target / SNAPSHOT).is_file():
        verb = read_snapshot(target)["verb"]
    if verb != ReportSettings.verb:
        raise OutputError(
            f"--output {str(target)!r} already holds something other than a report",
            "choose another --output, or move what is there",
        )


def _summary(outcomes: Outcomes) -> str:
    protocol = outcomes.protocol
    done = sum(result.status == "done" for result in outcomes.cells)
    planned = outcomes.planned_cells()
    failed = len(outcomes.failed)
    seeds = protocol.seeds
    kinds = {kind for task in protocol.tasks for kind in protocol.kinds_of(task)}
    own = ", ".join(name for name, task in protocol.tasks.items() if task.seeds)
    return (
        f"{len(protocol.starts)} starts × {len(kinds)} kind{'s' * (len(kinds) != 1)} × "
        f"{len(protocol.tasks)} tasks, {len(seeds.pretraining)} pre-training and "
        f"{len(seeds.finetuning)} fine-tuning seeds{f' ({own}: of their own)' if own else ''}: "
        f"{done:,} of {planned:,} cells are done"
        + (f", {failed:,} failed" if failed else "")
        + (f", {planned - done - failed:,} missing" if planned > done + failed else "")
        + ". "
        + ("At the papers' scale." if protocol.scale == "paper" else
           "At a small scale: whether a claim holds at the papers' is not decided here.")
        + _origins(outcomes)
    )  # fmt: skip


def _origins(outcomes: Outcomes) -> str:
    """A warning where cells began with different weights of a base that was trained anew."""
    counts: Counter[str | None] = Counter()
    runs: dict[tuple[str, int, int], set[str | None]] = defaultdict(set)
    for result in outcomes.cells:
        cell = result.cell
        if result.status == "done" and outcomes.protocol.starts[cell.start].model is None:
            counts[result.origin] += 1
            runs[cell.task, cell.pretraining_seed, cell.finetuning_seed].add(result.origin)
    if len(counts) < 2:
        return ""
    unknown = f"; of {counts[None]:,} cells it is not known which" if None in counts else ""
    known = len(counts.keys() - {None})
    mixed = sum(len(origins) > 1 for origins in runs.values())
    return (
        f" The base was trained more than once ({known} known weights{unknown}): cells of "
        "different bases differ by more than their starts. Bases meet within "
        f"{mixed:,} of the {len(runs):,} runs (a task and a pair of seeds)."
    )


def _verdict_values(one: Verdict) -> dict[str, Any]:
    return {
        "name": one.name,
        "statement": one.claim.statement,
        "paper": one.claim.paper,
        "decision": one.decision,
        "reason": one.reason,
        "overall": None if one.overall is None else _finding_values(one.overall),
        "findings": [_finding_values(found) for found in one.findings],
    }


def _finding_values(found: Finding) -> dict[str, Any]:
    return {
        "place": found.place,
        "difference": found.effect.difference,
        "p_value": found.effect.p_value,
        "corrected_p_value": found.corrected_p_value,
        "interval": found.interval,
        "bound": found.bound,
        "detectable": found.detectable,
    }


def _table_values(one: ScoreTable) -> dict[str, Any]:
    return {
        "title": one.title,
        "measure": one.measure,
        "columns": one.table.columns,
        "rows": [[asdict(cell) for cell in row] for row in one.table.rows],
        "caption": one.table.caption,
    }


def _plain(value: Any) -> Any:
    """The value as JSON holds it: what is not finite is null."""
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
