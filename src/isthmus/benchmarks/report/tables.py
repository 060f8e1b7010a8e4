"""The tables of a report: scores, verdicts, costs, numbers of the papers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from statistics import fmean

from isthmus.benchmarks.protocol.claims import ExpectedTable, ExpectedValue
from isthmus.benchmarks.report.scores import Column, Grid
from isthmus.benchmarks.report.settings import ReportSettings
from isthmus.benchmarks.report.verdicts import Finding, Verdict, letters
from isthmus.evaluation.statistics import letters_of
from isthmus.evaluation.tables import Cell, Table

_COSTS = {
    "pretraining_seconds": ("pre-training s", 1.0),
    "pretraining_tokens": ("tokens", 1.0),
    "finetuning_seconds": ("fine-tuning s", 1.0),
    "index_seconds": ("indexing s", 1.0),
    "index_bytes": ("index bytes", 1.0),
    "query_seconds": ("query ms", 1e3),
    "parameters": ("parameters", 1.0),
}


def shown(value: float) -> str:
    """A score with three digits and no zero before the point."""
    text = f"{value:.3f}"
    return text.replace("0.", ".", 1) if abs(value) < 1 else text


def signed(value: float) -> str:
    """A difference likewise, with its sign."""
    return f"{'−' if value < 0 else '+'}{shown(abs(value))}"


def score_tables(grid: Grid, settings: ReportSettings) -> list[Table]:
    """For every measure and retriever: the tasks' own collections, then each task's others.

    Measures without scores of single queries have none.
    """
    protocol = grid.protocol
    found: list[tuple[str, list[Column], bool]] = []
    for measure in protocol.measures:
        for retriever in protocol.retrievers:
            own = grid.columns(retriever, measure)
            plain = grid.columns(retriever, measure, finetuned=False)
            found.append((f"{retriever}, {measure}", own, False))
            found.append((f"{retriever} without fine-tuning, {measure}", plain, False))
            for task in dict.fromkeys(column.task for column in (*own, *plain)):
                tuned = protocol.tasks[task].finetune
                after = f"after {task}" if tuned else f"without fine-tuning ({task})"
                others = [
                    Column(retriever, task, collection, measure)
                    for collection in protocol.zero_shot
                    if collection != protocol.tasks[task].collection
                ]
                found.append((f"{retriever} {after}, zero-shot, {measure}", others, True))
    return [_score_table(grid, settings, *one) for one in found if any(map(grid.by_method, one[1]))]


def _score_table(
    grid: Grid, settings: ReportSettings, title: str, columns: Sequence[Column], zero_shot: bool
) -> Table:
    better = letters(grid, columns, settings)
    names = letters_of(grid.protocol.methods)
    # What lacks runs is no candidate for the best: one lucky seed would win.
    means = {
        column: {method: scores.mean for method, scores in grid.by_method(column).items()
                 if grid.whole(method, column)}
        for column in columns
    }  # fmt: skip
    best = {
        (method, column)
        for column, of_method in means.items()
        for method, mean in of_method.items()
        if mean == max(of_method.values())
    }
    wins = Counter(method for method, _ in best)
    averages = {
        method: fmean(of_method[method] for of_method in means.values())
        for method in grid.protocol.methods
        if all(method in of_method for of_method in means.values())
    }
    planned = {method for column in columns for method in grid.protocol.methods_of(column.task)}
    rows = []
    for method in filter(planned.__contains__, grid.protocol.methods):
        cells = [Cell(names[method]), Cell(method)]
        for column in columns:
            key = method, column
            cells.append(_cell(grid, method, column, better.get(key, ""), key in best))
        if len(columns) > 1:
            average = averages.get(method)
            top = average is not None and average == max(averages.values())
            cells.append(Cell("–" if average is None else shown(average), best=top))
            cells.append(Cell(str(wins[method])))
        rows.append(tuple(cells))
    heads = [column.collection if zero_shot else column.task for column in columns]
    summary = ("average", "best on") if len(columns) > 1 else ()
    caption = (
        f"{title}. Letters: significantly better than the rows of those letters (level "
        f"{settings.alpha:g}, corrected over the table). ±: standard deviation over seeds. n/m "
        "runs: n of the m that are planned are done; such a row takes no part in letters, best "
        "and average. Blank: not planned."
    )
    return Table(("#", "method", *heads, *summary), tuple(rows), caption, names=2)


def _cell(grid: Grid, method: str, column: Column, better: str, best: bool) -> Cell:
    if method not in grid.protocol.methods_of(column.task):
        return Cell("")
    scores = grid.scores(method, column)
    if scores is None:
        return Cell("missing", quiet=True)
    spread = [] if math.isnan(scores.spread) else [f"± {shown(scores.spread)}"]
    if not grid.whole(method, column):
        spread.append(f"{scores.runs}/{len(grid.protocol.seeds_of(column.task))} runs")
    return Cell(shown(scores.mean), letters=better, interval=", ".join(spread), best=best)


def verdict_table(verdicts: Sequence[Verdict]) -> Table:
    """A row per claim: the decision and the numbers it rests on."""
    rows = [
        _row(one.claim.statement, one.claim.paper, one.decision, *_numbers(one.overall), one.reason)
        for one in verdicts
    ]
    columns = ("claim", "paper", "verdict", "on average", "p, corrected", "why")
    caption = "Verdicts, with intervals that are uncorrected."
    return Table(columns, tuple(rows), caption, names=6)


def verdict_line(one: Verdict) -> str:
    """The decision on a claim and the numbers it rests on, for a terminal."""
    numbers = ", p ".join(filter(None, _numbers(one.overall)))
    return f"{one.decision}: {one.claim.statement} {'; '.join(filter(None, (numbers, one.reason)))}"


def finding_table(verdicts: Sequence[Verdict]) -> Table | None:
    """A row per setting of a claim that has several; None where there is none."""
    rows = [
        _row(one.claim.statement, found.setting, *_numbers(found))
        for one in verdicts
        for found in (one.findings if len(one.findings) > 1 else ())
    ]
    columns = ("claim", "setting", "difference", "p, corrected")
    caption = "The differences behind the verdicts, corrected for the settings of a claim."
    return Table(columns, tuple(rows), caption, names=2) if rows else None


def _row(*texts: str) -> tuple[Cell, ...]:
    return tuple(map(Cell, texts))


def _numbers(found: Finding | None) -> tuple[str, str]:
    """A difference with its interval, and its p-value."""
    if found is None:
        return "", ""
    p_value = "< .001" if found.p_value < 0.001 else shown(found.p_value)
    if found.interval is None:
        return signed(found.difference), p_value
    return "{} [{}, {}]".format(*map(signed, (found.difference, *found.interval))), p_value


def cost_tables(grid: Grid) -> list[Table]:
    """What a run of every method took: a table per task and retriever where anything is known."""
    names = letters_of(grid.protocol.methods)
    caption = (
        "Costs of {}, {}: of one run, on average over those that are done. Seconds are by the "
        "clock, on machines that other runs may have used meanwhile."
    )
    found = []
    for task in grid.protocol.tasks:
        for retriever in grid.protocol.retrievers_of(task):
            methods = grid.protocol.methods_of(task)
            columns = {
                head: [
                    _amount(grid.cost(method, retriever, task, name), unit) for method in methods
                ]
                for name, (head, unit) in _COSTS.items()
            }
            known = {head: amounts for head, amounts in columns.items() if {*amounts} != {"–"}}
            rows = [
                _row(names[method], method, *amounts)
                for method, *amounts in zip(methods, *known.values(), strict=True)
            ]
            if known:
                heads = ("#", "method", *known)
                found.append(Table(heads, tuple(rows), caption.format(retriever, task), names=2))
    return found


def _amount(value: float | None, unit: float) -> str:
    if value is None:
        return "–"
    return f"{value * unit:,.0f}" if value * unit >= 100 else f"{value * unit:.3g}"


def expected_table(grid: Grid) -> Table | None:
    """The papers' numbers next to ours; None where the protocol has none."""
    tables = grid.protocol.expected
    rows = [
        _row(f"{table.paper}, {table.table}", value.method, table.retriever, table.task,
             f"{value.collection} {value.measure}", shown(value.value), _ours(grid, table, value))
        for table in tables
        for value in table.values()
    ]  # fmt: skip
    if not rows:
        return None
    caption = (
        "At the papers' scale." if grid.protocol.scale == "paper" else
        "Not comparable: other data, a smaller model, fewer steps; read the order of the rows, "
        "not the numbers. Where the paper's collection is not here, ours is the task's (named)."
    )  # fmt: skip
    notes = dict.fromkeys(table.note for table in tables if table.note)
    columns = ("paper", "row", "retriever", "task", "test", "paper's", "ours")
    return Table(columns, tuple(rows), " ".join([caption, *notes]), names=5)


def _ours(grid: Grid, table: ExpectedTable, value: ExpectedValue) -> str:
    """Our score for a number of a paper; its main result of another collection if need be."""
    protocol, collection, where = grid.protocol, value.collection, ""
    main = f"{collection} {value.measure}" == table.columns[0]
    if main and value.measure == protocol.measures[0] and collection not in protocol.collections:
        collection = protocol.tasks[table.task].collection
        where = f" ({collection})"
    column = Column(table.retriever, table.task, collection, value.measure)
    ours = grid.scores(value.method, column)
    return "–" if ours is None else shown(ours.mean) + where
