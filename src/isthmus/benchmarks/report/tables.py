"""The tables of a report: scores, verdicts, costs, coverage, numbers of the papers, failures."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from isthmus.benchmarks.protocol.cells import CellResult
from isthmus.benchmarks.protocol.claims import ExpectedValue
from isthmus.benchmarks.report.scores import Column, Outcomes
from isthmus.benchmarks.report.settings import ReportSettings
from isthmus.benchmarks.report.verdicts import (
    Finding,
    TableComparisons,
    Verdict,
    compare_starts,
    rule,
)
from isthmus.errors import shortened
from isthmus.evaluation.significance import letters_of
from isthmus.evaluation.tables import Cell, Table

CLOCK = "Seconds are by the clock, on machines that other cells may have used meanwhile."
_CORRECTIONS = {"bonferroni": "Bonferroni", "holm": "Holm", "none": "no correction"}
_COSTS = {
    "pretraining_seconds": "pre-training s",
    "pretraining_tokens": "tokens",
    "finetuning_seconds": "fine-tuning s",
    "index_seconds": "indexing s",
    "index_bytes": "index bytes",
    "query_seconds": "query ms",
    "parameters": "parameters",
}
_REASON = 300  # characters of a reason that a table shows
_GUIDES = {"constant": "most frequent tokens", "ceiling": "most there is"}  # no names of starts
_MEASURED = re.compile(r"coverage/(?:(constant|ceiling)_)?at_(\d+)")
_COVERAGE = (
    "The mean share of a text's tokens among the first k that its vector names, before "
    "fine-tuning, on documents held out of pre-training. For reference: the share reached by "
    "naming the k most frequent tokens for every text, and the highest that k tokens can reach."
)


def shown(value: float) -> str:
    """A score with three digits and no zero before the point."""
    text = f"{value:.3f}"
    return text.replace("0.", ".", 1) if abs(value) < 1 else text


def signed(value: float) -> str:
    """A difference likewise, with its sign."""
    return f"{'−' if value < 0 else '+'}{shown(abs(value))}"


@dataclass(frozen=True)
class ScoreTable:
    """One table, with the comparisons that its letters come from."""

    measure: str
    zero_shot: bool
    title: str
    comparisons: TableComparisons
    table: Table


def score_tables(outcomes: Outcomes, settings: ReportSettings) -> list[ScoreTable]:
    """For every measure and encoder kind: the tasks' own collections, then each task's others.

    Measures without scores of single queries have none.
    """
    found: list[tuple[str, list[Column], bool]] = []
    for measure in outcomes.protocol.measures:
        for kind in outcomes.protocol.kinds:
            own = outcomes.columns(kind, measure)
            plain = outcomes.columns(kind, measure, finetuned=False)
            found.append((f"{kind}, {measure}", own, False))
            found.append((f"{kind} without fine-tuning, {measure}", plain, False))
            for task in dict.fromkeys(column.task for column in (*own, *plain)):
                others = outcomes.zero_shot_columns(kind, task, measure)
                tuned = outcomes.protocol.tasks[task].finetune
                after = f"after {task}" if tuned else f"without fine-tuning ({task})"
                found.append((f"{kind} {after}, zero-shot, {measure}", others, True))
    return [
        _score_table(outcomes, settings, *one)
        for one in found
        if any(map(outcomes.by_start, one[1]))
    ]


def _score_table(
    outcomes: Outcomes,
    settings: ReportSettings,
    title: str,
    columns: Sequence[Column],
    zero_shot: bool,
) -> ScoreTable:
    compared = compare_starts(outcomes, columns, settings)
    names = letters_of(outcomes.starts)
    # What lacks runs is no candidate for the best: one lucky seed would win.
    means = {
        column: {start: scores.mean for start, scores in outcomes.by_start(column).items()
                 if outcomes.whole(start, column)}
        for column in columns
    }  # fmt: skip
    best = {
        (start, column)
        for column, of_start in means.items()
        for start, mean in of_start.items()
        if mean == max(of_start.values())
    }
    wins = Counter(start for start, _ in best)
    averages = {
        start: fmean(of_start[start] for of_start in means.values())
        for start in outcomes.starts
        if all(start in of_start for of_start in means.values())
    }
    rows = []
    starts = [one for one in outcomes.starts if any(outcomes.planned(one, c.task) for c in columns)]
    for start in starts:
        cells = [Cell(names[start]), Cell(start)]
        for column in columns:
            letters = compared.beats.get((start, column), "")
            cells.append(_cell(outcomes, start, column, letters, (start, column) in best))
        if len(columns) > 1:
            average = averages.get(start)
            top = average is not None and average == max(averages.values())
            cells.append(Cell("–" if average is None else shown(average), best=top))
            cells.append(Cell(str(wins[start])))
        rows.append(tuple(cells))
    heads = [
        (column.collection if zero_shot else column.task)
        + (" (one seed)" if outcomes.seeds(column) == 1 else "")
        for column in columns
    ]
    summary = ("average", "best on") if len(columns) > 1 else ()
    caption = (
        f"{title}. Letters: significantly better than the rows of those letters (paired two-sided "
        f"t-test over queries and seeds, {_CORRECTIONS[settings.correction]} over the "
        f"{len(compared.pairs):,} comparisons of the table, level {settings.alpha:g}); of one seed "
        "over queries alone: they hold for these models, not the methods. ±: standard deviation "
        "over seeds. n/m runs: n of the m that are planned are done; such a row takes no part in "
        "letters, best and average. Blank: not planned."
    )
    table = Table(("#", "start", *heads, *summary), tuple(rows), caption, names=2)
    return ScoreTable(columns[0].measure, zero_shot, title, compared, table)


def _cell(outcomes: Outcomes, start: str, column: Column, letters: str, best: bool) -> Cell:
    if not outcomes.planned(start, column.task):
        return Cell("")
    scores = outcomes.scores(start, column)
    if scores is None:
        results = outcomes.at(start, column.kind, column.task)
        failed = any(result.status == "failed" for result in results)
        return Cell("failed" if failed else "missing", quiet=True)
    spread = [] if math.isnan(scores.spread) else [f"± {shown(scores.spread)}"]
    if not outcomes.whole(start, column):
        spread.append(f"{scores.runs}/{outcomes.planned_runs(column.task)} runs")
    return Cell(shown(scores.mean), letters=letters, interval=", ".join(spread), best=best)


def verdict_table(verdicts: Sequence[Verdict], settings: ReportSettings) -> Table:
    """A row per claim: the decision and the numbers it rests on."""
    rows = [
        (
            Cell(one.claim.statement),
            Cell(one.claim.paper),
            Cell(one.decision),
            Cell("" if one.overall is None else numbers(one.overall)),
            Cell(one.reason),
        )
        for one in verdicts
    ]
    columns = ("claim", "paper", "verdict", "on average", "why")
    return Table(columns, tuple(rows), rule(settings), names=5)


def finding_table(verdicts: Sequence[Verdict], settings: ReportSettings) -> Table | None:
    """A row per difference that the verdicts rest on; None where there is none."""
    rows = [
        (Cell(one.claim.statement), *_finding_cells(found))
        for one in verdicts
        for found in (one.overall, *(one.findings if len(one.findings) > 1 else ()))
        if found is not None
    ]
    if not rows:
        return None
    columns = (
        "claim", "place", "difference", f"{settings.confidence:.0%} interval", "at most",
        "p, corrected", "detectable",
    )  # fmt: skip
    caption = (
        "The differences behind the verdicts. At most: the upper end of the interval, at the "
        "confidence that Bonferroni leaves to one comparison. Detectable: the true difference "
        f"found with {settings.power:.0%} power."
    )
    return Table(columns, tuple(rows), caption, names=2)


def _finding_cells(found: Finding) -> tuple[Cell, ...]:
    texts = (
        found.place,
        signed(found.effect.difference),
        _range(found.interval),
        signed(found.bound) if math.isfinite(found.bound) else "–",
        _p(found.corrected_p_value),
        shown(found.detectable) if math.isfinite(found.detectable) else "–",
    )
    return tuple(map(Cell, texts))


def numbers(found: Finding) -> str:
    """A difference with its interval and p-value, in a few characters."""
    p_value = f"{'corrected ' * (found.family > 1)}p {_p(found.corrected_p_value)}"
    return f"{signed(found.effect.difference)} {_range(found.interval)}, {p_value}"


def _range(interval: tuple[float, float]) -> str:
    if math.isinf(interval[0]):
        return "(no interval)"
    return "[{}, {}]".format(*map(signed, interval))


def _p(value: float) -> str:
    return "< .001" if value < 0.001 else shown(value)


def cost_tables(outcomes: Outcomes) -> list[Table]:
    """What the cells of every start took: a table per task and kind where anything is known."""
    tasks = outcomes.protocol.tasks
    found = (
        _cost_table(outcomes, kind, task)
        for task in tasks
        for kind in outcomes.protocol.kinds_of(task)
    )
    return [table for table in found if table is not None]


def _cost_table(outcomes: Outcomes, kind: str, task: str) -> Table | None:
    starts = [start for start in outcomes.starts if outcomes.planned(start, task)]
    costs = {name: [_cost(outcomes, one, kind, task, name) for one in starts] for name in _COSTS}
    known = {name: of_start for name, of_start in costs.items() if {*of_start} != {"–"}}
    if not known:
        return None
    letters = letters_of(outcomes.starts)
    rows = tuple(
        tuple(map(Cell, (letters[start], start, *(of_start[row] for of_start in known.values()))))
        for row, start in enumerate(starts)
    )
    caption = (
        f"Costs of {kind}, {task}: of one cell, on average over the seeds that are done; of "
        f"pre-training, over all on the task's collection. {CLOCK}"
    )
    return Table(("#", "start", *(_COSTS[name] for name in known)), rows, caption, names=2)


def _cost(outcomes: Outcomes, start: str, kind: str, task: str, name: str) -> str:
    if name == "pretraining_seconds":
        known = outcomes.pretraining_seconds(start, task)
    else:
        known = outcomes.values(start, kind, task, lambda one: getattr(one.cost, name))
    if not known:
        return "–"
    value = fmean(known) * (1000 if name == "query_seconds" else 1)
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


@dataclass(frozen=True)
class CoverageCurves:
    """Input token coverage by k, of the starts that were pre-trained on one corpus.

    "Drop your Decoder" (SIGIR 2024), figures 2 and 4, of the models that cells began with.
    """

    corpus: str
    k: tuple[int, ...]
    starts: dict[str, dict[int, float]]
    guides: dict[str, dict[int, float]]

    def table(self) -> Table:
        """A row per start and guide, a column per k."""
        rows = [
            (Cell(name, quiet=quiet), *(Cell(_share(curve, k), quiet=quiet) for k in self.k))
            for quiet, curves in ((False, self.starts), (True, self.guides))
            for name, curve in curves.items()
        ]
        caption = f"Input token coverage by k, {self.corpus}. {_COVERAGE}"
        return Table(("start", *map(str, self.k)), tuple(rows), caption)


def _share(curve: dict[int, float], k: int) -> str:
    return shown(curve[k]) if k in curve else "–"


def coverage_curves(outcomes: Outcomes) -> list[CoverageCurves]:
    """The curves of every corpus on which the probe measured some, averaged over seeds."""
    found: dict[str, dict[str, dict[int, dict[tuple[str, int], float]]]] = {}
    for result in outcomes.cells:
        for name, k, value in _coverage(outcomes, result):
            corpus = found.setdefault(_corpus(outcomes, result), defaultdict(dict))
            # Cells of one pre-training have the same numbers: it counts once.
            trained = result.cell.start, result.cell.pretraining_seed
            corpus[name].setdefault(k, {})[trained] = value
    curves = {
        corpus: {
            name: {k: fmean(values.values()) for k, values in sorted(curve.items())}
            for name, curve in of_name.items()
        }
        for corpus, of_name in found.items()
    }
    return [
        CoverageCurves(
            corpus,
            tuple(sorted({k for curve in of_name.values() for k in curve})),
            {name: of_name[name] for name in outcomes.starts if name in of_name},
            {name: of_name[name] for name in _GUIDES.values() if name in of_name},
        )
        for corpus, of_name in curves.items()
    ]


def _coverage(outcomes: Outcomes, result: CellResult) -> Iterator[tuple[str, int, float]]:
    """What was measured for a cell: the name of a start or guide, k, and the share."""
    start = result.cell.start
    before = _before(outcomes, start)
    for name, probes in ((before, result.probes_before), (start, result.probes)):
        for probe, value in probes.items():
            if name is not None and (measured := _MEASURED.fullmatch(probe)):
                guide, k = measured.groups()
                yield _GUIDES[guide] if guide else name, int(k), value


def _corpus(outcomes: Outcomes, result: CellResult) -> str:
    """What the start of a cell was pre-trained on: a collection of the protocol, or a spec."""
    protocol = outcomes.protocol
    collection = protocol.tasks[result.cell.task].collection
    own = protocol.starts[result.cell.start].corpus
    return own or protocol.collections[collection].corpus or collection


def _before(outcomes: Outcomes, name: str) -> str | None:
    """The start whose model another one goes on from; None where the protocol has no such start."""
    starts = outcomes.protocol.starts
    if (after := starts[name].after) is not None:
        return after
    untrained = (other for other, one in starts.items() if one.recipe is None)
    return next((other for other in untrained if starts[other].model == starts[name].model), None)


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
    rows = []
    for result in outcomes.failed:
        cell = result.cell
        seeds = f"{cell.pretraining_seed}, {cell.finetuning_seed}"
        reason = shortened(" ".join((result.reason or "no reason was kept").split()), _REASON)
        rows.append(tuple(map(Cell, (cell.start, cell.kind, cell.task, seeds, reason))))
    caption = "Cells that failed; `isthmus benchmark run` runs them again."
    columns = ("start", "kind", "task", "seeds", "reason")
    return Table(columns, tuple(rows), caption, names=5) if rows else None
