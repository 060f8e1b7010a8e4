"""The plot of a report, as SVG: the difference behind every verdict, with its interval."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Sequence

from isthmus.benchmarks.report.verdicts import Verdict
from isthmus.progress import notice

_COLOURS = {"supported": "#1a7145", "not supported": "#b23a2e", "inconclusive": "#84640f"}


def verdict_plot(verdicts: Sequence[Verdict]) -> str:
    """The SVG of the verdicts that have an interval; "" without any, or without matplotlib."""
    known = {
        one.name: (one.overall.difference, one.overall.interval, _COLOURS[one.decision])
        for one in verdicts
        if one.overall and one.overall.interval
    }
    if not known:
        return ""
    if importlib.util.find_spec("matplotlib") is None:
        notice("for a plot of the verdicts: pip install 'isthmus[report]'")
        return ""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    # What the SVG holds is text, not paths, and the same for the same verdicts.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "isthmus", "font.size": 8}):
        figure = Figure(figsize=(7.6, 0.8 + 0.22 * len(known)), layout="constrained")
        axis = figure.subplots()
        for place, (difference, interval, colour) in enumerate(known.values()):
            axis.plot(interval, (place, place), color=colour, linewidth=2)
            axis.plot(difference, place, "o", color=colour)
        axis.axvline(0.0, color="grey", linewidth=0.8)
        axis.set_yticks(range(len(known)), [*known])
        axis.invert_yaxis()
        axis.spines[["top", "right"]].set_visible(False)
        written = io.StringIO()
        figure.savefig(written, format="svg", metadata={"Date": None}, transparent=True)
    return "<svg" + written.getvalue().partition("<svg")[2]
