"""`isthmus benchmark report`: from a folder of cells to tables, verdicts and plots."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import xxhash

from isthmus.benchmarks.protocol.cells import CELLS, CellResult, read_result
from isthmus.benchmarks.protocol.settings import read_protocol
from isthmus.benchmarks.report.contents import BenchmarkReport
from isthmus.benchmarks.report.coverage import coverage_curves
from isthmus.benchmarks.report.html_report import html_report
from isthmus.benchmarks.report.outcomes import Outcomes
from isthmus.benchmarks.report.plots import figures
from isthmus.benchmarks.report.score_tables import score_tables
from isthmus.benchmarks.report.settings import ReportSettings
from isthmus.benchmarks.report.summary_tables import cost_tables, expected_table, failure_table
from isthmus.benchmarks.report.verdicts import verdicts
from isthmus.benchmarks.report.wins import wins_and_losses
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
from isthmus.progress import notice, track

REPORT = "report"


def benchmark_report(
    folder: str | Path,
    output: str | Path | None = None,
    *,
    settings: ReportSettings | Overrides = None,
) -> BenchmarkReport:
    """The report of the cells in a folder of `isthmus benchmark run`, however many are done.

    Writes report.html, report.md, report.tex, report.json and comparisons.tsv (every pair of
    starts) into `output`, or FOLDER/report; an earlier report there is replaced.
    """
    settings = ReportSettings.given(settings)
    folder = Path(folder)
    target = folder / REPORT if output is None else Path(output)
    name, protocol = read_protocol(folder)
    _refuse_other_folder(target)
    digest = xxhash.xxh3_128()
    outcomes = Outcomes(protocol, _cells(folder, digest))
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
            ("report.html", html_report(report)),
            ("report.md", report.markdown()),
            ("report.tex", report.latex()),
            ("comparisons.tsv", report.comparisons_tsv()),
        ):
            with whole_file(target / file) as stream:
                stream.write(content)
        write_json(target / "report.json", report.to_json())
        decisions = {one.name: one.decision for one in report.verdicts}
        write_snapshot(target, settings.verb, identity, {"verdicts": decisions})
    return report


def assemble(name: str, outcomes: Outcomes, settings: ReportSettings) -> BenchmarkReport:
    """The report of outcomes that were read already; nothing is written."""
    return BenchmarkReport(
        title=f"Benchmark {name}" if name else "Benchmark",
        summary=_summary(outcomes),
        method=_method(settings),
        settings=settings,
        verdicts=tuple(verdicts(outcomes, settings)),
        tables=tuple(score_tables(outcomes, settings)),
        costs=cost_tables(outcomes),
        coverage=tuple(coverage_curves(outcomes)),
        expected=expected_table(outcomes),
        failures=failure_table(outcomes),
        figures=tuple(figures(outcomes, settings)),
        wins=tuple(wins_and_losses(outcomes, settings)),
    )


def _cells(folder: Path, digest: xxhash.xxh3_128) -> Iterator[CellResult]:
    """Every result in a folder, one after the other, counted into a digest."""
    found = sorted((folder / CELLS).glob("*.json"))
    files = [file for file in found if not file.name.startswith(".")]  # of file systems
    for file in track(files, "reading cells", total=len(files), unit="cell"):
        result = read_result(file)
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
        + _made_otherwise(outcomes)
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


def _made_otherwise(outcomes: Outcomes) -> str:
    """A warning where digests differ of parts that cells have in common."""
    digests: dict[tuple[str, ...], set[str]] = defaultdict(set)
    for result in outcomes.cells:
        cell, parts = result.cell, result.parts
        task = outcomes.protocol.tasks[cell.task]
        # Queries and judgements that scores are of; what all cells of one pre-training share.
        shared = {
            "base": (), "tests": (cell.task,), "teacher": (cell.task,),
            "start": (cell.start, task.collection, str(cell.pretraining_seed)),
        }  # fmt: skip
        for part, place in shared.items():
            if result.status == "done" and part in parts:
                digests[part, *place].add(parts[part])
    differing = dict.fromkeys(part for (part, *_), found in digests.items() if len(found) > 1)
    if not differing:
        return ""
    return (
        f" Cells of different settings or texts are mixed here ({', '.join(differing)}): their "
        "scores are not comparable; `isthmus benchmark run` on this folder names them."
    )


def _method(settings: ReportSettings) -> tuple[str, ...]:
    machines = (
        "Scores are means over seeds of means over all judged queries; ± is the standard deviation "
        "from pre-training seed to pre-training seed, each the mean of its fine-tuning seeds."
    )
    tests = (
        "Over queries: a paired two-sided t-test of the scores of each query, averaged over seeds; "
        "it speaks of these very models. Over seeds: a paired t-test of the means of each "
        "pre-training seed; it speaks of these very queries, and with three seeds finds only large "
        "differences. Over both: to the variance over queries comes what seeds add to it, pooled "
        "over all starts of a column, or a start's own where that is higher (quasi-F, Clark 1973; "
        "Satterthwaite's degrees of freedom); it speaks of the methods, on other queries and with "
        "other seeds. All three, of every pair, are in the comparisons.tsv that `isthmus benchmark "
        "report` also writes."
    )
    families = (
        f"Correction ({settings.correction}) counts all pairs of starts in all columns of a table "
        "as one family, all places of a claim as another, and the averages of all claims as a "
        "third. The minimum detectable difference is "
        f"the true difference that a test finds with {settings.power:.0%} power at the level that "
        "Bonferroni leaves to one comparison, by the noncentral t distribution. Effects are "
        "standardised by the deviation of the differences from query to query."
    )
    return machines, tests, families
