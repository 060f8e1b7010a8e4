"""The plots of a report, as SVG: verdicts, quality against cost, gains by task, coverage by k."""

from __future__ import annotations

import importlib.util
import io
import math
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

from isthmus.benchmarks.report.scores import Column, Outcomes
from isthmus.benchmarks.report.settings import ReportSettings
from isthmus.benchmarks.report.tables import CoverageCurves
from isthmus.benchmarks.report.verdicts import Term, Verdict, estimate
from isthmus.progress import notice

_COLOURS = {"held": "#1a7145", "did not hold": "#b23a2e", "undecided": "#84640f"}
_WIDTH = 7.6  # inches
Plots = list[tuple[str, str]]
"""Titles and SVG."""


def plots(
    outcomes: Outcomes,
    settings: ReportSettings,
    verdicts: Sequence[Verdict],
    coverage: Sequence[CoverageCurves],
) -> Plots:
    """Every plot for which the cells hold enough numbers; none where matplotlib is missing."""
    if importlib.util.find_spec("matplotlib") is None:
        notice("for plots: pip install 'isthmus[report]'")
        return []
    measure = outcomes.protocol.measures[0]
    found = [("Differences that verdicts rest on, with their intervals", _forest(verdicts))]
    for label, read in _costs(outcomes).items():
        found.append((f"{measure} against {label}", _against(outcomes, label, read)))
    title = f"Gain in {measure} over {outcomes.starts[0]}, from task to task"
    found.append((title, _gains(outcomes, settings)))
    found += [(f"Input token coverage by k, {one.corpus}", _coverage(one)) for one in coverage]
    return [(title, svg) for title, svg in found if svg]


def _drawn(panels: int, height: float, draw: Callable[[list[Any]], None]) -> str:
    """A figure of panels, one below the other; what it holds is text, not paths."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "isthmus", "font.size": 8}):
        figure = Figure(figsize=(_WIDTH, height * panels), layout="constrained")
        axes = list(figure.subplots(panels, squeeze=False)[:, 0])
        draw(axes)
        for one in axes:
            one.spines[["top", "right"]].set_visible(False)
        written = io.StringIO()
        figure.savefig(written, format="svg", metadata={"Date": None}, transparent=True)
    return "<svg" + written.getvalue().partition("<svg")[2]


def _plain(text: str) -> str:
    """A name as matplotlib shows it: a dollar sign would begin mathematics."""
    return text.replace("$", r"\$")


def _forest(verdicts: Sequence[Verdict]) -> str:
    known = [(one, one.overall) for one in verdicts
             if one.overall and math.isfinite(one.overall.interval[0])]  # fmt: skip
    if not known:
        return ""

    def draw(axes: list[Any]) -> None:
        (axis,) = axes
        for place, (verdict, found) in enumerate(known):
            colour = _COLOURS[verdict.decision]
            axis.plot(found.interval, (place, place), color=colour, linewidth=2)
            axis.plot(found.effect.difference, place, "o", color=colour)
        axis.axvline(0.0, color="grey", linewidth=0.8)
        axis.set_yticks(range(len(known)), [_plain(verdict.name) for verdict, _ in known])
        axis.invert_yaxis()

    return _drawn(1, 0.8 + 0.22 * len(known), draw)


def _costs(outcomes: Outcomes) -> dict[str, Callable[[str, str, str], list[float]]]:
    """What quality is drawn against, read of a start, a kind and a task."""

    def speed(start: str, kind: str, task: str) -> list[float]:
        seconds = outcomes.values(start, kind, task, lambda one: one.cost.query_seconds)
        return [1.0 / one for one in seconds if one]

    return {
        "seconds of pre-training": lambda start, _, task: outcomes.pretraining_seconds(start, task),
        "bytes of the index": lambda start, kind, task: outcomes.values(
            start, kind, task, lambda one: one.cost.index_bytes
        ),
        "queries per second": speed,
    }


def _against(outcomes: Outcomes, label: str, read: Callable[[str, str, str], list[float]]) -> str:
    """Scores against a cost, after the first task that trains on each collection."""
    protocol, measure = outcomes.protocol, outcomes.protocol.measures[0]
    tuned = [name for name, task in protocol.tasks.items() if task.finetune] or [*protocol.tasks]
    first: dict[str, str] = {}
    for name in tuned:
        first.setdefault(protocol.tasks[name].collection, name)
    panels: dict[str, list[tuple[str, float, float, float, int]]] = {}
    for collection, task in first.items():
        for number, kind in enumerate(protocol.kinds):
            for start, scores in outcomes.by_start(Column(kind, task, collection, measure)).items():
                if known := read(start, kind, task):
                    spread = 0.0 if math.isnan(scores.spread) else scores.spread
                    dot = (start, fmean(known), scores.mean, spread, number)
                    panels.setdefault(task, []).append(dot)
    panels = {task: dots for task, dots in panels.items() if len({dot[1] for dot in dots}) > 1}
    if not panels:
        return ""

    def draw(axes: list[Any]) -> None:
        for axis, (task, dots) in zip(axes, panels.items(), strict=True):
            for number, kind in enumerate(protocol.kinds):
                here = [dot for dot in dots if dot[4] == number]
                names, x, y, spread, _ = zip(*here, strict=True) if here else ((),) * 5
                axis.errorbar(x, y, spread, fmt="o", label=kind, elinewidth=0.7, markersize=4)
                for name, *at in zip(names, x, y, strict=True):
                    axis.annotate(_plain(name), at, (3, 2), textcoords="offset points", fontsize=6)
            values = [dot[1] for dot in dots]
            if 0 < 8 * min(values) < max(values):
                axis.set_xscale("log")
            axis.set(title=_plain(task), xlabel=label, ylabel=measure)
            axis.legend()

    return _drawn(len(panels), 3.6, draw)


def _gains(outcomes: Outcomes, settings: ReportSettings) -> str:
    """How far each start is above the first, from few training queries to many, then a teacher."""
    protocol, (first, *others) = outcomes.protocol, outcomes.starts
    panels: dict[str, dict[str, list[tuple[str, float, float]]]] = {}
    for kind in protocol.kinds:
        columns = outcomes.columns(kind, protocol.measures[0])
        for collection in dict.fromkeys(column.collection for column in columns):
            here = [column for column in columns if column.collection == collection]
            here.sort(key=lambda column: _strength(outcomes, column.task))
            for start in others:
                gains = []
                for column in here:
                    if not (outcomes.whole(start, column) and outcomes.whole(first, column)):
                        continue
                    found = estimate(
                        outcomes, [Term(1.0, start, column), Term(-1.0, first, column)]
                    )
                    assert found is not None, "both have scores"
                    high = found.effect.interval(settings.confidence)[1]
                    reach = high - found.effect.difference
                    reach = reach if math.isfinite(reach) else 0.0
                    gains.append((column.task, found.effect.difference, reach))
                if len(gains) > 1:
                    panels.setdefault(f"{kind}, {collection}", {})[start] = gains
    if not panels:
        return ""

    def draw(axes: list[Any]) -> None:
        for axis, (title, lines) in zip(axes, panels.items(), strict=True):
            axis.axhline(0.0, color="grey", linewidth=0.8)
            for start, gains in lines.items():
                tasks, heights, reaches = zip(*gains, strict=True)
                names = [*map(_plain, tasks)]
                axis.errorbar(
                    names, heights, reaches, label=_plain(start), linewidth=1, elinewidth=0.5
                )
            axis.set(title=_plain(title), ylabel=f"over {_plain(first)}")
            axis.legend(fontsize=6, ncols=4)

    return _drawn(len(panels), 3.6, draw)


def _strength(outcomes: Outcomes, name: str) -> tuple[bool, float]:
    task = outcomes.protocol.tasks[name]
    return task.teacher is not None, math.inf if task.queries is None else float(task.queries)


def _coverage(curves: CoverageCurves) -> str:
    def draw(axes: list[Any]) -> None:
        (axis,) = axes
        for style, of_name in (("o-", curves.starts), ("--", curves.guides)):
            for name, curve in of_name.items():
                axis.plot([*curve], [*curve.values()], style, label=_plain(name), lw=1, ms=3)
        axis.set(xlabel="k", xscale="log", ylabel="share of a text's tokens")
        axis.legend(fontsize=6, ncols=2)

    return _drawn(1, 3.8, draw)
