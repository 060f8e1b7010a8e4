"""Plots that can be read: names beside what they name, apart from each other, inside the frame."""

from __future__ import annotations

import re
from itertools import combinations, pairwise

import pytest

from isthmus.benchmarks.report.drawing import Dot, Interval, forest, lines, scatter

TEXT = re.compile(r'<text x="([-\d.]+)" y="([-\d.]+)">([^<]*)</text>')
TICK = re.compile(r'<text class="tick end"[^>]*>([^<]*)</text>')


def _names(plot: str) -> dict[str, tuple[float, float]]:
    return {name: (float(x), float(y)) for x, y, name in TEXT.findall(plot)}


def test_names_of_crowded_dots_are_apart_and_none_is_lost() -> None:
    dots = [Dot(f"start-{n}", "", 100.0 + n % 3, 0.3 + 0.002 * (n % 5)) for n in range(15)]
    dots += [Dot("", "unnamed", 200.0, 0.4)]
    named = _names(scatter("plot", "seconds", "RR@10", dots))
    assert named.keys() == {f"start-{n}" for n in range(15)}
    for one, other in combinations(named.values(), 2):
        assert abs(one[0] - other[0]) > 40 or abs(one[1] - other[1]) >= 11
    assert all(0 <= x <= 380 and 0 <= y <= 300 for x, y in named.values())


@pytest.mark.parametrize(("lowest", "ends_at_0"), [(0.001, True), (-0.001, False)])
def test_an_axis_goes_below_0_only_with_what_is_drawn(lowest: float, ends_at_0: bool) -> None:
    dots = [Dot("a", "a", 1.0, lowest, spread=0.02), Dot("b", "b", 2.0, 0.12)]
    ticks = [float(tick) for tick in TICK.findall(scatter("plot", "seconds", "RR@10", dots))]
    assert (min(ticks) == 0) == ends_at_0


def test_every_line_is_named_at_its_end_and_the_highest_show_intervals() -> None:
    series = [
        (f"start-{n}", [Dot("", f"start-{n}", place, 0.01 * (n % 4), 0.005) for place in (0, 1)])
        for n in range(30)
    ]
    plot = lines("plot", "gain", ["few", "with-a-teacher\n(one seed)"], series, [])
    heights = sorted(y for _, y in _names(plot).values())
    assert len(heights) == 30
    assert min(b - a for a, b in pairwise(heights)) >= 11.9
    assert plot.count('class="spread"') == 4 * 2
    assert ">with-a-teacher<" in plot
    assert ">(one seed)<" in plot


def test_a_forest_stays_on_its_axis_and_shows_texts_as_texts() -> None:
    endless = Interval("<b>place</b>", 0.01, float("-inf"), float("inf"), "p 1.000")
    shown = forest("claim", [endless, Interval("other", -0.02, -0.03, -0.01, "p .001")], 0.005)
    assert "&lt;b&gt;place" in shown
    assert "<b>" not in shown
    places = [float(place) for place in re.findall(r'(?:x1|x2|cx)="([-\d.]+)%"', shown)]
    assert min(places) == 0
    assert max(places) == 100
