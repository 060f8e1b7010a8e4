"""Quality against cost, training queries and what a probe saw; what vectors hold of their texts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from isthmus.benchmarks.protocol.cells import CellResult
from isthmus.benchmarks.report.coverage import CAPTION, coverage_curves
from isthmus.benchmarks.report.drawing import Dot, lines, scatter
from isthmus.benchmarks.report.outcomes import Column, Outcomes
from isthmus.evaluation.significance import letters_of

_COSTS = {
    "pretraining_seconds": "seconds of pre-training",
    "index_bytes": "bytes of the index",
    "query_seconds": "milliseconds per query",
}
_FACTORS = {"query_seconds": 1000.0}


@dataclass(frozen=True)
class Figure:
    """A row of plots with one caption."""

    title: str
    caption: str
    plots: tuple[str, ...]


def figures(outcomes: Outcomes) -> list[Figure]:
    """Every figure for which the cells hold enough numbers."""
    measure = outcomes.protocol.measures[0]
    kinds = " and ".join(
        f"{kind} ({shape})"
        for kind, shape in zip(
            outcomes.protocol.kinds, ("dots", "squares", "triangles"), strict=False
        )
    )
    found = []
    for name, label in _COSTS.items():
        factor = _FACTORS.get(name, 1.0)
        panels = _panels(outcomes, measure, label, _cost(name, factor))
        found.append(
            Figure(f"{measure} against {label}", f"{kinds}; letters as in the tables.", panels)
        )
    found.append(
        Figure(
            f"Gain in {measure} over {outcomes.starts[0]}, from task to task",
            "Tasks on one collection, from few training queries to many, with a teacher last.",
            _by_task(outcomes, measure),
        )
    )
    probes = dict.fromkeys(name for result in outcomes.cells for name in result.probes)
    for name in (name for name in probes if "/" not in name):  # the one that a probe is read by
        panels = _panels(outcomes, measure, name, _probe(name))
        about = f"What the probe {name} saw of the pre-trained model, before fine-tuning."
        found.append(Figure(f"{measure} against {name}", about, panels))
    curves = tuple(one.plot() for one in coverage_curves(outcomes))
    found.append(Figure("Input token coverage", f"{CAPTION} The last two are dashed.", curves))
    return [figure for figure in found if figure.plots]


def _cost(name: str, factor: float) -> Callable[[CellResult], float | None]:
    def read(result: CellResult) -> float | None:
        value: float | None = getattr(result.cost, name)
        return None if value is None else factor * value

    return read


def _probe(name: str) -> Callable[[CellResult], float | None]:
    return lambda result: result.probes.get(name)


def _panels(
    outcomes: Outcomes,
    measure: str,
    label: str,
    read: Callable[[CellResult], float | None],
) -> tuple[str, ...]:
    """A plot per task in which a number is known of two starts at least."""
    letters = letters_of(outcomes.starts)
    panels = []
    for task in outcomes.protocol.tasks:
        dots = []
        for shape, kind in enumerate(outcomes.protocol.kinds):
            column = Column(kind, task, outcomes.protocol.tasks[task].collection, measure)
            for start in outcomes.starts:
                scores = outcomes.scores(start, column)
                known = [
                    value
                    for result in outcomes.at(start, kind, task)
                    if result.status == "done" and (value := read(result)) is not None
                ]
                if scores is not None and known:
                    spread = 0.0 if math.isnan(scores.spread) else scores.spread
                    dot = Dot(
                        letters[start], f"{start}, {kind}", fmean(known), scores.mean, spread, shape
                    )
                    dots.append(dot)
        if len({dot.x for dot in dots}) > 1:
            values = [dot.x for dot in dots]
            log = min(values) > 0 and max(values) > 8 * min(values)
            panels.append(scatter(task, label, f"{task}: {measure}", dots, log))
    return tuple(panels)


def _by_task(outcomes: Outcomes, measure: str) -> tuple[str, ...]:
    protocol = outcomes.protocol
    letters = letters_of(outcomes.starts)
    panels = []
    for kind in protocol.kinds:
        for collection in dict.fromkeys(task.collection for task in protocol.tasks.values()):
            tasks = [
                name
                for name, task in protocol.tasks.items()
                if task.collection == collection and task.finetune
                and kind in (task.kinds or protocol.kinds)
            ]  # fmt: skip
            tasks.sort(key=lambda name: _strength(outcomes, name))
            columns = [Column(kind, task, collection, measure) for task in tasks]
            series = [
                (letters[start], _gains(outcomes, start, letters[start], columns))
                for start in outcomes.starts
            ]
            if len(tasks) > 1 and any(len(dots) > 1 for _, dots in series):
                up = f"{kind}, {collection}: gain in {measure}"
                panels.append(lines(up, up, tasks, series))
    return tuple(panels)


def _gains(outcomes: Outcomes, start: str, letter: str, columns: Sequence[Column]) -> list[Dot]:
    """How far a start is above the first one, in every column in which both have scores."""
    dots = []
    for place, column in enumerate(columns):
        scores, first = (outcomes.scores(name, column) for name in (start, outcomes.starts[0]))
        if scores is not None and first is not None:
            gain = scores.mean - first.mean
            dots.append(Dot(letter, f"{start}, {column.task}", place, gain))
    return dots


def _strength(outcomes: Outcomes, name: str) -> tuple[bool, float]:
    task = outcomes.protocol.tasks[name]
    return task.teacher is not None, math.inf if task.queries is None else float(task.queries)
