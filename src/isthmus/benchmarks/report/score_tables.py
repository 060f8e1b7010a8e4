"""Tables of scores in the layout of the benchmark paper: a row per start, a column per test."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import fmean

from isthmus.benchmarks.report.comparisons import TableComparisons, compare_starts
from isthmus.benchmarks.report.outcomes import Column, Outcomes
from isthmus.benchmarks.report.settings import ReportSettings
from isthmus.evaluation.significance import letters_of
from isthmus.evaluation.tables import Cell, Table

_CORRECTIONS = {"bonferroni": "Bonferroni", "holm": "Holm", "none": "no correction"}
MISSING = "missing"
FAILED = "failed"


@dataclass(frozen=True)
class ScoreTable:
    """One table, with the comparisons that its letters come from."""

    kind: str
    measure: str
    zero_shot: bool
    title: str
    columns: tuple[Column, ...]
    comparisons: TableComparisons
    table: Table


def score_tables(outcomes: Outcomes, settings: ReportSettings) -> list[ScoreTable]:
    """For every measure and encoder kind: the tasks' own collections, then each task's others."""
    found: list[tuple[str, list[Column], bool]] = []
    for measure in outcomes.protocol.measures:
        for kind in outcomes.protocol.kinds:
            own = outcomes.columns(kind, measure)
            plain = outcomes.columns(kind, measure, finetuned=False)
            found.append((f"{kind}, {measure}", own, False))
            found.append((f"{kind} without fine-tuning, {measure}", plain, False))
            for task in dict.fromkeys(column.task for column in (*own, *plain)):
                others = outcomes.zero_shot_columns(kind, task, measure)
                if any(map(outcomes.by_start, others)):
                    before = _training(outcomes, task)
                    found.append((f"{kind} {before}, zero-shot, {measure}", others, True))
    return [_table(outcomes, settings, *one) for one in found if one[1]]


def _training(outcomes: Outcomes, task: str) -> str:
    tasks = outcomes.protocol.tasks
    if tasks[task].finetune:
        return f"after {task}"
    several = sum(not one.finetune for one in tasks.values()) > 1
    return "without fine-tuning" + (f" ({task})" if several else "")


def _table(
    outcomes: Outcomes,
    settings: ReportSettings,
    title: str,
    columns: Sequence[Column],
    zero_shot: bool,
) -> ScoreTable:
    compared = compare_starts(outcomes, columns, settings)
    names = letters_of(outcomes.starts)
    means = {
        (start, column): scores.mean
        for column in columns
        for start, scores in outcomes.by_start(column).items()
    }
    best = {(start, column) for column in columns for start in _best(outcomes, column)}
    counted = _counted(outcomes, columns)
    wins = Counter(start for start, column in best if column in counted)
    averages = {
        start: fmean(means[start, column] for column in counted)
        for start in outcomes.starts
        if all((start, column) in means for column in counted)
    }
    several = len(counted) > 1
    rows = []
    for start in outcomes.starts:
        if not any(outcomes.planned(start, column.task) for column in columns):
            continue
        cells = [Cell(names[start]), Cell(start)]
        for column in columns:
            letters = compared.beats[start, column]
            cells.append(_cell(outcomes, start, column, letters, (start, column) in best))
        if several:
            average = averages.get(start)
            top = average is not None and average == max(averages.values())
            cells.append(Cell("–" if average is None else shown(average), best=top))
            cells.append(Cell(str(wins[start])))
        rows.append(tuple(cells))
    heads, groups = _heads(columns, counted, zero_shot)
    caption = _caption(title, outcomes, columns, counted, compared, settings)
    notes = ["±: standard deviation over seeds."] if _has_several_seeds(outcomes, columns) else []
    if any("/" in cell.interval for row in rows for cell in row):
        notes.append("n/m runs: n of the m that are planned are done.")
    if any(mean > means[one] for one in best for (_, c), mean in means.items() if c == one[1]):
        notes.append("A row with less than half of the runs of others is not called best.")
    table = Table(
        heads, tuple(rows), caption, names=2, interval_note=" ".join(notes), groups=groups
    )
    return ScoreTable(
        columns[0].kind, columns[0].measure, zero_shot, title, tuple(columns), compared, table
    )


def _best(outcomes: Outcomes, column: Column) -> list[str]:
    """The starts of the highest mean, of those with at least half of the most runs."""
    found = outcomes.by_start(column)
    most = max((len(scores.runs) for scores in found.values()), default=0)
    means = {start: one.mean for start, one in found.items() if 2 * len(one.runs) >= most}
    return [start for start, mean in means.items() if mean == max(means.values())]


def _counted(outcomes: Outcomes, columns: Sequence[Column]) -> list[Column]:
    """The columns that averages are over: all, but those of one seed where others have several."""
    if not _has_several_seeds(outcomes, columns):
        return list(columns)
    return [column for column in columns if outcomes.seeds(column) != 1]


def _heads(
    columns: Sequence[Column], counted: Sequence[Column], zero_shot: bool
) -> tuple[tuple[str, ...], tuple[tuple[str, int], ...]]:
    """Names of tasks below their collections; of a zero-shot table, of collections alone.

    A column that averages leave out is marked.
    """
    summary = ("average", "best on") if len(counted) > 1 else ()
    heads = [
        (column.collection if zero_shot else column.task)
        + ("" if column in counted else " (one seed)")
        for column in columns
    ]
    if zero_shot:
        return ("#", "start", *heads, *summary), ()
    groups = [
        (collection, len(list(group)))
        for collection, group in groupby(column.collection for column in columns)
    ]
    spans = (("", 2), *groups, *([("", 2)] if summary else []))
    return ("#", "start", *heads, *summary), spans


def _cell(outcomes: Outcomes, start: str, column: Column, letters: str, best: bool) -> Cell:
    if not outcomes.planned(start, column.task):
        return Cell("")
    scores = outcomes.scores(start, column)
    results = outcomes.at(start, column.kind, column.task)
    failed = sum(result.status == "failed" for result in results)
    wanted = outcomes.planned_runs(column.task)
    if scores is None:
        return Cell(FAILED if failed else MISSING, quiet=True)
    spread = "" if math.isnan(scores.spread) else f"± {shown(scores.spread)}"
    if len(scores.runs) < wanted:
        spread = ", ".join(filter(None, [spread, f"{len(scores.runs)}/{wanted} runs"]))
    return Cell(shown(scores.mean), letters=letters, interval=spread, best=best)


def shown(value: float) -> str:
    """A score or a difference with three digits and no zero before the point."""
    text = f"{value:.3f}"
    return text.replace("0.", ".", 1) if abs(value) < 1 else text


def _has_several_seeds(outcomes: Outcomes, columns: Sequence[Column]) -> bool:
    return any(outcomes.seeds(column) > 1 for column in columns)


def _caption(
    title: str,
    outcomes: Outcomes,
    columns: Sequence[Column],
    counted: Sequence[Column],
    compared: TableComparisons,
    settings: ReportSettings,
) -> str:
    sentences = [f"{title}."]
    starts = [
        start
        for start in outcomes.starts
        if any(outcomes.planned(start, column.task) for column in columns)
    ]
    if compared.pairs:
        seeds = settings.over == "both" and _has_several_seeds(outcomes, columns)
        over = "queries and seeds" if seeds else "queries"
        sentences.append(
            f"Letters: significantly better than the rows of those letters (paired two-sided "
            f"t-test over {over}, {_CORRECTIONS[settings.correction]} over the "
            f"{len(compared.pairs):,} comparisons of the table, level {settings.alpha:g})."
        )
        if not seeds:
            one = "One seed: they" if settings.over == "both" else "They"
            sentences.append(f"{one} hold for these models, not the methods.")
        reaches = (compared.detectable.get(one, math.inf) for one in counted)
        found = sorted(reach for reach in reaches if math.isfinite(reach))
        if found:
            reach = shown(found[0])
            if len(found) > 1 and shown(found[-1]) != reach:
                # No measure differs by more than 1: with so few seeds none would be found.
                reach += f" to {shown(found[-1])}" if found[-1] <= 1 else " and far more"
            sentences.append(
                f"A single true difference of {reach} would be found with {settings.power:.0%} "
                "power."
            )
    if len(counted) < len(columns):
        letters = (
            "are tested over queries only, so their letters hold for these models, not the "
            "methods; they "
        )
        sentences.append(
            f"Columns marked (one seed) {letters if settings.over == 'both' else ''}"
            "count neither in the average nor in best on."
        )
    if not all(outcomes.planned(start, column.task) for start in starts for column in columns):
        sentences.append("Blank: not planned; –: no average without all columns.")
    absent = sum(
        outcomes.planned(start, column.task) and outcomes.scores(start, column) is None
        for start in outcomes.starts
        for column in columns
    )
    if absent:
        sentences.append(f"Without a score yet: {absent}.")
    return " ".join(sentences)
