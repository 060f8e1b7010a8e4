"""The plots of a report, as SVG: verdicts, and gains from task to task."""

from __future__ import annotations

import importlib.util
import io
import math
from collections.abc import Callable, Sequence
from typing import Any

from isthmus.benchmarks.report.scores import Grid
from isthmus.benchmarks.report.settings import ReportSettings
from isthmus.benchmarks.report.verdicts import Term, Verdict, estimate
from isthmus.progress import notice

_COLOURS = {"supported": "#1a7145", "not supported": "#b23a2e", "inconclusive": "#84640f"}
_WIDTH = 7.6  # inches
Panels = dict[str, Callable[[Any], None]]
"""What is drawn on each pair of axes, by its title."""


def plots(grid: Grid, settings: ReportSettings, verdicts: Sequence[Verdict]) -> dict[str, str]:
    """The SVG of every plot for which the runs hold enough numbers, by title."""
    if importlib.util.find_spec("matplotlib") is None:
        notice("for plots: pip install 'isthmus[report]'")
        return {}
    known = [one for one in verdicts if one.overall and one.overall.interval]
    forest: Panels = {"": lambda axis: _forest(axis, known)} if known else {}
    first = next(iter(grid.protocol.methods))
    gain = f"Gain in {grid.protocol.measures[0]} over {first}, from task to task"
    found = {
        "Differences that verdicts rest on": (0.8 + 0.22 * len(known), forest),
        gain: (3.6, _gains(grid, settings)),
    }
    return {title: _drawn(*plot) for title, plot in found.items() if plot[1]}


def _drawn(height: float, panels: Panels) -> str:
    """A figure of panels, one below the other; what it holds is text, not paths."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "isthmus", "font.size": 8}):
        figure = Figure(figsize=(_WIDTH, height * len(panels)), layout="constrained")
        axes = figure.subplots(len(panels), squeeze=False)[:, 0]
        for axis, (title, draw) in zip(axes, panels.items(), strict=True):
            axis.set_title(_plain(title))
            draw(axis)
            axis.spines[["top", "right"]].set_visible(False)
        written = io.StringIO()
        figure.savefig(written, format="svg", metadata={"Date": None}, transparent=True)
    return "<svg" + written.getvalue().partition("<svg")[2]


def _plain(text: str) -> str:
    """A name as matplotlib shows it: a dollar sign would begin mathematics."""
    return text.replace("$", r"\$")


def _forest(axis: Any, verdicts: Sequence[Verdict]) -> None:
    for place, one in enumerate(verdicts):
        assert one.overall is not None
        assert one.overall.interval is not None
        colour = _COLOURS[one.decision]
        axis.plot(one.overall.interval, (place, place), color=colour, linewidth=2)
        axis.plot(one.overall.difference, place, "o", color=colour)
    axis.axvline(0.0, color="grey", linewidth=0.8)
    axis.set_yticks(range(len(verdicts)), [_plain(one.name) for one in verdicts])
    axis.invert_yaxis()


def _gains(grid: Grid, settings: ReportSettings) -> Panels:
    """How far each method is above the first, from few training queries to many, then a teacher."""
    protocol = grid.protocol
    first, *others = protocol.methods
    panels: Panels = {}
    for retriever in protocol.retrievers:
        columns = grid.columns(retriever, protocol.measures[0])
        for collection in dict.fromkeys(column.collection for column in columns):
            here = [column for column in columns if column.collection == collection]
            here.sort(key=lambda column: _strength(grid, column.task))
            lines: dict[str, list[tuple[str, float, float]]] = {}
            for method in others:
                for column in here:
                    if grid.whole(method, column) and grid.whole(first, column):
                        terms = (Term(1.0, method, column), Term(-1.0, first, column))
                        effect = estimate(grid, terms).effect
                        reach = effect.interval(1 - settings.alpha)[1] - effect.difference
                        reach = reach if math.isfinite(reach) else 0.0
                        point = _plain(column.task), effect.difference, reach
                        lines.setdefault(method, []).append(point)
            lines = {method: points for method, points in lines.items() if len(points) > 1}
            if lines:

                def draw(axis: Any, lines: Any = lines) -> None:
                    axis.axhline(0.0, color="grey", linewidth=0.8)
                    for method, points in lines.items():
                        axis.errorbar(
                            *zip(*points, strict=True), label=_plain(method), lw=1, elinewidth=0.5
                        )
                    axis.set(ylabel=f"over {_plain(first)}")
                    axis.legend(fontsize=6, ncols=4)

                panels[f"{retriever}, {collection}"] = draw
    return panels


def _strength(grid: Grid, name: str) -> tuple[bool, float]:
    task = grid.protocol.tasks[name]
    return task.teacher is not None, math.inf if task.queries is None else float(task.queries)
