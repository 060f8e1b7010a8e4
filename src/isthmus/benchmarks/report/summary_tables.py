"""Tables beside the scores: verdicts, costs, numbers of the papers, and what failed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import fmean

from isthmus.benchmarks.protocol.claims import ExpectedValue
from isthmus.benchmarks.report.drawing import short, signed
from isthmus.benchmarks.report.outcomes import Column, Outcomes
from isthmus.benchmarks.report.score_tables import shown
from isthmus.benchmarks.report.settings import ReportSettings
from isthmus.benchmarks.report.verdicts import Finding, Verdict, rule
from isthmus.errors import shortened
from isthmus.evaluation.significance import letters_of
from isthmus.evaluation.tables import Cell, Table

_COSTS = {
    "pretraining_seconds": "pre-training s",
    "pretraining_tokens": "tokens",
    "finetuning_seconds": "fine-tuning s",
    "index_seconds": "indexing s",
    "index_bytes": "index bytes",
    "query_seconds": "query ms",
    "parameters": "parameters",
}
CLOCK = "Seconds are by the clock, on machines that other cells may have used meanwhile."
_REASON = 300  # characters of a reason that a table shows


def verdict_table(verdicts: Sequence[Verdict], settings: ReportSettings) -> Table:
    """A row per claim: the decision and the numbers it rests on."""
    rows = [
        tuple(
            Cell(text)
            for text in (
                one.claim.statement,
                one.claim.paper,
                one.decision,
                one.reason + ("" if one.complete else " (cells are missing)"),
                "" if one.overall is None else numbers(one.overall),
            )
        )
        for one in verdicts
    ]
    columns = ("claim", "paper", "verdict", "why", "on average")
    return Table(columns, tuple(rows), rule(settings), names=5)


def finding_table(verdicts: Sequence[Verdict], settings: ReportSettings) -> Table | None:
    """A row per difference that the verdicts rest on, with all tests; None where there is none.

    The claim is named where there are several.
    """
    named = len(verdicts) > 1
    rows = [
        (*([Cell(one.claim.statement)] if named else []), *_finding_cells(found))
        for one in verdicts
        for found in ([one.overall, *one.findings] if len(one.findings) > 1 else one.findings)
        if found is not None
    ]
    if not rows:
        return None
    columns = (
        "claim", "place", "difference", f"{settings.confidence:.0%} interval", "at most",
        "standardised", "p over queries", "p over seeds", "p, corrected", "detectable",
    )  # fmt: skip
    caption = (
        "The differences behind the verdicts. Standardised: in standard deviations from query to "
        "query. At most: the upper end of the interval, at the confidence that Bonferroni leaves "
        f"to one comparison. Detectable: the true difference found with {settings.power:.0%} power."
    )
    return Table(columns if named else columns[1:], tuple(rows), caption, names=1 + named)


def _finding_cells(found: Finding) -> tuple[Cell, ...]:
    place = f"{found.place} (without {', '.join(found.without)})" if found.without else found.place
    if found.estimate is None or found.interval is None or found.detectable is None:
        return (Cell(place), *(Cell("missing", quiet=True) for _ in range(8)))
    queries, seeds = found.estimate.queries, found.estimate.seeds
    texts = (
        place,
        signed(found.difference),
        _range(found.interval),
        signed(found.bound) if math.isfinite(found.bound) else "–",
        "–" if math.isnan(queries.standardised) else f"{queries.standardised:+.2f}",
        _p(queries.p_value),
        "–" if math.isnan(seeds.error) else _p(seeds.p_value),
        _p(found.corrected_p_value),
        shown(found.detectable) if math.isfinite(found.detectable) else "–",
    )
    return tuple(map(Cell, texts))


def decision_table(verdicts: Sequence[Verdict]) -> Table:
    """A row per claim for a terminal: the decision and why."""
    rows = [tuple(map(Cell, (one.claim.statement, one.decision, _why(one)))) for one in verdicts]
    return Table(("claim", "verdict", "why"), tuple(rows), "", names=3)


def _why(one: Verdict) -> str:
    average = "" if one.overall is None else f"{numbers(one.overall)}: "
    return f"{average}{one.reason}" + ("" if one.complete else " (cells are missing)")


def numbers(found: Finding) -> str:
    """A difference with its interval and p-value, in a few characters."""
    if found.estimate is None or found.interval is None:
        return "missing"
    kind = "corrected " if found.family > 1 else ""
    return f"{signed(found.difference)} {_range(found.interval)}, {kind}{p_shown(found)}"


def _range(interval: tuple[float, float]) -> str:
    if math.isinf(interval[0]):
        return "(no interval)"
    return "[{}, {}]".format(*map(signed, interval))


def p_shown(found: Finding) -> str:
    """The p-value as papers write it, corrected where there is a family to correct for."""
    return f"p {_p(found.corrected_p_value)}"


def _p(value: float) -> str:
    return "< .001" if value < 0.001 else shown(value)


def cost_tables(outcomes: Outcomes) -> dict[str, tuple[Table, ...]]:
    """What the cells of every start took, by task: a table per kind, where anything is known."""
    found: dict[str, tuple[Table, ...]] = {}
    for task in outcomes.protocol.tasks:
        kinds = outcomes.protocol.kinds_of(task)
        tables = (_cost_table(outcomes, kind, task) for kind in kinds)
        if known := tuple(table for table in tables if table):
            found[task] = known
    return found


def _cost_table(outcomes: Outcomes, kind: str, task: str) -> Table | None:
    letters = letters_of(outcomes.starts)
    rows = {
        start: [_cost(outcomes, start, kind, task, name) for name in _COSTS]
        for start in outcomes.starts
        if outcomes.planned(start, task)
    }
    varied, alike = [], []
    for place, label in enumerate(_COSTS.values()):
        known = {values[place] for values in rows.values()}
        if known == {"–"}:
            continue
        if len(known) == 1 and len(rows) > 1:
            alike.append(f"{label}: {known.pop()}")
        else:
            varied.append((place, label))
    if not varied and not alike:
        return None
    same = f" The same for all: {', '.join(alike)}." if alike else ""
    return Table(
        ("#", "start", *(label for _, label in varied)),
        tuple(
            (Cell(letters[start]), Cell(start), *(Cell(values[place]) for place, _ in varied))
            for start, values in rows.items()
        ),
        f"Costs of {kind}, {task}: of one cell, on average over the seeds that are done; of "
        f"pre-training, over all on the task's collection. {CLOCK}{same}",
        names=2,
    )


def _cost(outcomes: Outcomes, start: str, kind: str, task: str, name: str) -> str:
    if name == "pretraining_seconds":
        known = outcomes.pretraining_seconds(start, task)
    else:
        known = outcomes.values(start, kind, task, lambda one: getattr(one.cost, name))
    if not known:
        return "–"
    return short(fmean(known) * (1000 if name == "query_seconds" else 1))


def expected_table(outcomes: Outcomes) -> Table | None:
    """The papers' numbers beside ours; None where the protocol has none."""
    rows = [
        tuple(map(Cell, _beside(outcomes, value, table.columns[0])))
        for table in outcomes.protocol.expected
        for value in table.values()
    ]
    if not rows:
        return None
    comparable = outcomes.protocol.scale == "paper"
    notes = dict.fromkeys(table.note for table in outcomes.protocol.expected if table.note)
    caption = (
        "What the papers report, beside ours. "
        + ("At the papers' scale." if comparable else
           "Not comparable: other data, a smaller model, fewer steps; read the order of the rows, "
           "not the numbers. The main result is ours on the task's collection where the paper's is "
           "not here.")
    )  # fmt: skip
    columns = ("paper", "row", "kind", "task", "test", "paper's", "ours", "comparable")
    return Table(columns, tuple(rows), " ".join([caption, *notes]), names=5)


def _beside(outcomes: Outcomes, value: ExpectedValue, first: str) -> Iterable[str]:
    ours, protocol, collection, where = None, outcomes.protocol, value.collection, ""
    # The paper's main result: of another collection than ours, where its own is not here.
    main = f"{collection} {value.measure}" == first and value.measure == protocol.measures[0]
    if value.start in outcomes.starts and value.task in protocol.tasks:
        if main and collection not in protocol.collections:
            collection = protocol.tasks[value.task].collection
            where = f" ({collection})"
        column = Column(value.kind, value.task, collection, value.measure)
        ours = outcomes.scores(value.start, column)
    return (
        f"{value.paper}, {value.table}",
        value.start,
        value.kind,
        value.task,
        f"{value.collection} {value.measure}",
        shown(value.value),
        "–" if ours is None else shown(ours.mean) + where,
        "yes" if protocol.scale == "paper" else "no",
    )


def failure_table(outcomes: Outcomes) -> Table | None:
    """A row per failed cell with its reason; None where all went well."""
    if not outcomes.failed:
        return None
    rows = []
    for result in outcomes.failed:
        cell = result.cell
        seeds = f"{cell.pretraining_seed}, {cell.finetuning_seed}"
        reason = shortened(" ".join((result.reason or "no reason was kept").split()), _REASON)
        rows.append(tuple(map(Cell, (cell.start, cell.kind, cell.task, seeds, reason))))
    caption = "Cells that failed; `isthmus benchmark run` runs them again."
    columns = ("start", "kind", "task", "seeds", "reason")
    return Table(columns, tuple(rows), caption, names=5)
