"""Quality against cost, training queries and what a probe saw; what vectors hold of their texts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from isthmus.benchmarks.protocol.cells import CellResult
from isthmus.benchmarks.report.comparisons import Term, estimate, with_common_runs
from isthmus.benchmarks.report.coverage import CAPTION, coverage_curves
from isthmus.benchmarks.report.drawing import Dot, lines, scatter
from isthmus.benchmarks.report.outcomes import Column, Outcomes
from isthmus.benchmarks.report.settings import ReportSettings
from isthmus.benchmarks.report.summary_tables import CLOCK

_NAMED = 3  # of a kind, where kinds share a plot
_SHAPES = ("dots", "squares", "triangles")
_SPREAD = "Vertical lines: one standard deviation over seeds, up and down."
Reader = Callable[[str, str, str], list[float]]  # of a start, a kind and a task


@dataclass(frozen=True)
class Figure:
    """A row of plots with one caption."""

    title: str
    caption: str
    plots: tuple[str, ...]


def figures(outcomes: Outcomes, settings: ReportSettings) -> list[Figure]:
    """Every figure for which the cells hold enough numbers."""
    measure = outcomes.protocol.measures[0]
    first = outcomes.starts[0]
    found = [
        Figure(
            f"{measure} against seconds of pre-training",
            f"After the first task on each collection. {_SPREAD} {CLOCK}",
            _by_kind(
                outcomes,
                "seconds of pre-training",
                lambda start, _, task: outcomes.pretraining_seconds(start, task),
            ),
        ),
        Figure(
            f"{measure} against the size of the index and queries per second",
            " and ".join(map(" as ".join, zip(outcomes.protocol.kinds, _SHAPES, strict=False)))
            + f", after the first task on each collection. Labelled: {first} and the best three of "
            f"each kind. {_SPREAD} Queries are searched for one at a time, on a machine that other "
            "cells may have used meanwhile: starts of one kind may differ by chance.",
            _index_plots(outcomes),
        ),
        Figure(
            f"Gain in {measure} over {first}, from task to task",
            "Tasks on one collection, from few training queries to many, with a teacher last, by "
            f"the runs that a start and {first} have in all of them where there are such. The "
            f"highest four lines have colours, and {settings.confidence:.0%} intervals (of one "
            "seed: over queries alone).",
            _by_task(outcomes, measure, settings),
        ),
    ]
    probes = dict.fromkeys(name for result in outcomes.cells for name in result.probes)
    for name in (name for name in probes if "/" not in name):  # the one that a probe is read by
        about = f"What the probe {name} saw of the pre-trained model, before fine-tuning. {_SPREAD}"
        panels = _by_kind(outcomes, name, _of_cells(outcomes, _probe(name)))
        found.append(Figure(f"{measure} against {name}", about, panels))
    curves = tuple(one.plot() for one in coverage_curves(outcomes))
    found.append(Figure("Input token coverage", CAPTION, curves))
    return [figure for figure in found if figure.plots]


def _of_cells(outcomes: Outcomes, read: Callable[[CellResult], float | None]) -> Reader:
    return lambda start, kind, task: outcomes.values(start, kind, task, read)


def _probe(name: str) -> Callable[[CellResult], float | None]:
    return lambda result: result.probes.get(name)


def _rate(result: CellResult) -> float | None:
    seconds = result.cost.query_seconds
    return 1.0 / seconds if seconds else None


def _first_tasks(outcomes: Outcomes) -> list[str]:
    """The first task on every collection, of those that train if any does."""
    tasks = outcomes.protocol.tasks
    chosen = [name for name, task in tasks.items() if task.finetune] or list(tasks)
    first: dict[str, str] = {}
    for name in chosen:
        first.setdefault(tasks[name].collection, name)
    return list(first.values())


def _by_kind(outcomes: Outcomes, label: str, read: Reader) -> tuple[str, ...]:
    """A plot per kind of every first task."""
    kinds = outcomes.protocol.kinds
    found = (
        _plot(outcomes, task, [kind], label, read)
        for task in _first_tasks(outcomes)
        for kind in kinds
    )
    return tuple(filter(None, found))


def _index_plots(outcomes: Outcomes) -> tuple[str, ...]:
    """Two plots of every first task, each of all kinds together."""
    kinds = list(outcomes.protocol.kinds)
    read: dict[str, Reader] = {
        "bytes of the index": _of_cells(outcomes, lambda result: result.cost.index_bytes),
        "queries per second": _of_cells(outcomes, _rate),
    }
    found = (
        _plot(outcomes, task, kinds, label, one)
        for task in _first_tasks(outcomes)
        for label, one in read.items()
    )
    return tuple(filter(None, found))


def _plot(
    outcomes: Outcomes, task: str, kinds: Sequence[str], label: str, read: Reader
) -> str | None:
    """Scores of a task against a number; None where it is not known of two starts that differ."""
    measure = outcomes.protocol.measures[0]
    dots: list[Dot] = []
    for kind in kinds:
        here = []
        shape = list(outcomes.protocol.kinds).index(kind)
        column = Column(kind, task, outcomes.protocol.tasks[task].collection, measure)
        for start, scores in outcomes.by_start(column).items():
            if known := read(start, kind, task):
                spread = 0.0 if math.isnan(scores.spread) else scores.spread
                name = f"{start}, {kind}"
                here.append(Dot(start, name, fmean(known), scores.mean, spread, shape))
        best = sorted((dot.y for dot in here), reverse=True)[:_NAMED]
        dots += (
            dot if len(kinds) == 1 or dot.y in best or dot.label == outcomes.starts[0]
            else replace(dot, label="")
            for dot in here
        )  # fmt: skip
    values = [dot.x for dot in dots]
    if len({*values}) < 2:
        return None
    log = min(values) > 0 and max(values) > 8 * min(values)
    title = f"{', '.join([*kinds, task] if len(kinds) == 1 else [task])}: {measure}"
    return scatter(title, label, title, dots, log)


def _by_task(outcomes: Outcomes, measure: str, settings: ReportSettings) -> tuple[str, ...]:
    protocol = outcomes.protocol
    panels = []
    for kind in protocol.kinds:
        every = outcomes.columns(kind, measure)
        for collection in dict.fromkeys(task.collection for task in protocol.tasks.values()):
            columns = [one for one in every if one.collection == collection]
            columns.sort(key=lambda column: _strength(outcomes, column.task))
            first, *others = outcomes.starts
            series = [
                (start, dots)
                for start in others
                if len(dots := [*_gains(outcomes, start, first, columns, settings)]) > 1
            ]
            if series:
                up = f"{kind}, {collection}: gain in {measure}"
                places = [_place(outcomes, column) for column in columns]
                level = [Dot("", first, place, 0.0) for place in (0, len(columns) - 1)]
                panels.append(lines(up, up, places, series, [(first, level)]))
    return tuple(panels)


def _place(outcomes: Outcomes, column: Column) -> str:
    return column.task + ("\n(one seed)" if outcomes.seeds(column) == 1 else "")


def _gains(
    outcomes: Outcomes,
    start: str,
    first: str,
    columns: Sequence[Column],
    settings: ReportSettings,
) -> Iterable[Dot]:
    """How far a start is above the first one, in every column in which both have scores.

    By the runs that all of these have, so that the columns differ in their tasks alone.
    """
    sides = ((1.0, start), (-1.0, first))
    known = [
        (place, column)
        for place, column in enumerate(columns)
        if all(outcomes.scores(name, column) for _, name in sides)
    ]
    terms = [Term(weight, name, column) for _, column in known for weight, name in sides]
    if terms:
        terms = with_common_runs(outcomes, terms) or terms
    for (place, column), *pair in zip(known, terms[::2], terms[1::2], strict=True):
        if found := estimate(outcomes, pair):
            effect = found.chosen(settings)
            reach = effect.interval(settings.confidence)[1] - effect.difference
            spread = reach if math.isfinite(reach) else 0.0
            yield Dot("", f"{start}, {column.task}", place, effect.difference, spread)


def _strength(outcomes: Outcomes, name: str) -> tuple[bool, float]:
    task = outcomes.protocol.tasks[name]
    return task.teacher is not None, math.inf if task.queries is None else float(task.queries)
