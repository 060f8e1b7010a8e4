"""Small plots as inline SVG: named dots, named lines, differences with intervals.

Text stays text, and colours come from the page's stylesheet: plots follow its light and dark.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape as escape_html
from statistics import fmean

from isthmus.errors import visible

WIDTH, HEIGHT = 420, 300
LEFT, RIGHT, TOP, BOTTOM = 44, 22, 26, 46
_SHAPES = 3  # kinds of marks; further kinds begin again
_LETTER = 6.8  # width of a letter at the size of labels
_LINE = 12.0  # height of one
_NAME = 22  # letters of a name that are shown
_TICK = 16  # letters of a name below an axis, in one line
_STRONG = 4  # lines that have a colour

Scale = Callable[[float], float]
Curve = tuple[str, Sequence["Dot"]]
"""The name of a line, and where it goes."""


@dataclass(frozen=True)
class Dot:
    """A point to draw: its label beside it, its name and numbers when pointed at."""

    label: str
    name: str
    x: float
    y: float
    spread: float = 0.0
    """How far it may be off, up and down."""
    shape: int = 0


@dataclass(frozen=True)
class Interval:
    """A difference with its interval, and the words beside it."""

    name: str
    value: float
    low: float
    high: float
    says: str
    mark: str = ""
    """The stylesheet's classes: for, against, overall, once (of one seed)."""


def scatter(title: str, across: str, up: str, dots: Sequence[Dot], log: bool = False) -> str:
    """Dots over two numbers, with their labels; the first axis by powers where `log`.

    The second axis ends at 0 where no dot is below.
    """
    log = log and all(dot.x > 0 for dot in dots)
    x_ticks = _log_ticks([dot.x for dot in dots]) if log else _ticks([dot.x for dot in dots])
    lowest = -math.inf if any(dot.y < 0 for dot in dots) else 0.0
    ends = [end for dot in dots for end in (max(dot.y - dot.spread, lowest), dot.y + dot.spread)]
    y_ticks = _ticks(ends)
    change: Scale = math.log10 if log else float
    x = _scale(x_ticks[0], x_ticks[-1], LEFT, WIDTH - RIGHT, change)
    y = _scale(y_ticks[0], y_ticks[-1], HEIGHT - BOTTOM, TOP)
    labels = [(x(tick), short(tick)) for tick in x_ticks]
    parts = [*_frame(across, up, labels, y_ticks, y, WIDTH - RIGHT, HEIGHT)]
    numbers = (f"{across} {short(dot.x)}, {up} {dot.y:.3f}" for dot in dots)
    parts += [
        _dot(dot, x(dot.x), y, said, y_ticks[0]) for dot, said in zip(dots, numbers, strict=True)
    ]
    return _svg(title, HEIGHT, [*parts, *_labels(dots, x, y)])


def lines(
    title: str, up: str, places: Sequence[str], series: Sequence[Curve], guides: Sequence[Curve]
) -> str:
    """A line per series over named places, 0, 1, …, with its name at its end.

    The highest have colours and show how far their dots may be off; guides are dashed.
    """
    curves = [curve for curve in (*guides, *series) if curve[1]]
    order = sorted(series, key=lambda one: -fmean(dot.y for dot in one[1]) if one[1] else math.inf)
    tones = {name: tone for tone, (name, _) in enumerate(order[:_STRONG])}
    height = max(HEIGHT, TOP + BOTTOM + round(_LINE * len(curves)))
    y_ticks = _ticks(
        end
        for name, line in curves
        for dot in line
        for off in ((-dot.spread, dot.spread) if name in tones else (0.0,))
        for end in (dot.y + off,)
    )
    right = WIDTH - 24 - _LETTER * max((min(len(name), _NAME) for name, _ in curves), default=0)
    x = _scale(0, max(len(places) - 1, 1), LEFT + 22, right - 14)
    y = _scale(y_ticks[0], y_ticks[-1], height - BOTTOM, TOP)
    labels = [(x(place), name) for place, name in enumerate(places)]
    parts = [*_frame("", up, labels, y_ticks, y, right, height)]
    ends = _apart([y(line[-1].y) for _, line in curves], TOP, height - BOTTOM)
    guided = {name for name, _ in guides}
    for (name, line), end in sorted(
        zip(curves, ends, strict=True), key=lambda one: one[0][0] in tones
    ):
        kind = "guide" if name in guided else f"tone{tones[name]}" if name in tones else "faint"
        aside = 0.0
        if name in tones and any(dot.spread for dot in line):  # intervals beside each other
            aside = 3.0 * (tones[name] - (_STRONG - 1) / 2)
        path = " ".join(f"{x(dot.x) + aside:.1f},{y(dot.y):.1f}" for dot in line)
        shape = f'<polyline class="line" points="{path}"><title>{escape(name)}</title></polyline>'
        last = x(line[-1].x) + aside + 5
        parts += [
            f'<g class="{kind}">{shape}<line class="leader" x1="{last:.1f}" '
            f'y1="{y(line[-1].y):.1f}" x2="{right + 12:.1f}" y2="{end:.1f}"/>'
            f'<text x="{right + 15:.1f}" y="{end + 4:.1f}">{escape(_cut(name, _NAME))}</text>'
        ]
        if kind.startswith("tone") or len(line) == 1:
            parts += [_dot(dot, x(dot.x) + aside, y, f"{up} {dot.y:.3f}") for dot in line]
        parts.append("</g>")
    return _svg(title, height, parts)


def forest(title: str, intervals: Sequence[Interval], band: float) -> str:
    """Differences with their intervals, one below the other; the band is what does not matter.

    A grid of names, ranges and numbers: on a narrow page a name stands above its range.
    """
    ends = [value for one in intervals for value in (one.low, one.high) if math.isfinite(value)]
    ticks = _ticks([*ends, *(one.value for one in intervals), -band, band, 0.0], 5)
    x = _scale(ticks[0], ticks[-1], 0.0, 100.0)
    back = (
        f'<rect class="band" x="{x(-band):.1f}%" width="{x(band) - x(-band):.1f}%" height="100%"/>'
        f'<line class="zero" x1="{x(0):.1f}%" x2="{x(0):.1f}%" y2="100%"/>'
    )
    marks = (f'<text class="tick middle" x="{x(t):.1f}%" y="12">{signed(t)}</text>' for t in ticks)
    parts = [f"<svg>{''.join(marks)}</svg>"]
    for one in intervals:
        low, high = (min(max(x(end), 0.0), 100.0) for end in _finite(one))
        parts += [
            f'<span class="place {one.mark}">{escape(one.name)}</span>'
            f'<svg>{back}<line class="range {one.mark}" x1="{low:.1f}%" x2="{high:.1f}%" '
            f'y1="11" y2="11"/><circle class="estimate {one.mark}" cx="{x(one.value):.1f}%" '
            f'cy="11" r="4"/></svg><span class="says {one.mark}">{signed(one.value)}</span>'
            f"<span class=quiet>{escape(one.says)}</span>"
        ]
    return f'<div class="forest" aria-label="{escape(title)}">{"".join(parts)}</div>'


def _finite(one: Interval) -> tuple[float, float]:
    return max(one.low, -1e9), min(one.high, 1e9)


def short(value: float) -> str:
    """A number as an axis shows it: 1,500, 12k, 3.4M, 0.02."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if unit == 'k' else size):.3g}{unit}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def signed(value: float) -> str:
    """A difference with its sign, three digits, and no zero before the point."""
    if round(value, 3) == 0:
        return "0" if value == 0 else ".000"
    text = f"{value:+.3f}"
    return text.replace("0.", ".", 1) if abs(value) < 1 else text


def escape(text: str) -> str:
    """The text as SVG shows it: on one line, no markup, no control character."""
    return escape_html(visible(" ".join(text.split())))


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"


def _scale(low: float, high: float, start: float, end: float, change: Scale = float) -> Scale:
    first, last = change(low), change(high)
    size = (last - first) or 1.0
    return lambda value: start + (change(value) - first) / size * (end - start)


def _ticks(values: Iterable[float], wanted: int = 5) -> list[float]:
    """Round numbers that reach from below the lowest value to above the highest."""
    known = [value for value in values if math.isfinite(value)] or [0.0, 1.0]
    low, high = min(known), max(known)
    if low == high:
        room = abs(low) * 0.1 or 1.0
        low, high = low - room, high + room
    raw = (high - low) / wanted
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(unit * factor for factor in (1, 2, 2.5, 5, 10) if unit * factor >= raw)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(place * step, 12) for place in range(first, last + 1)]


def _log_ticks(values: Iterable[float]) -> list[float]:
    known = list(values)
    first, last = math.floor(math.log10(min(known))), math.ceil(math.log10(max(known)))
    steps = (1, 2, 5) if last - first < 3 else (1,)
    every = [step * 10.0**power for power in range(first, last + 1) for step in steps]
    low = max((tick for tick in every if tick <= min(known) * 0.999), default=every[0])
    high = min((tick for tick in every if tick >= max(known) * 1.001), default=every[-1])
    return [tick for tick in every if low <= tick <= high] or [low, high]


def _frame(
    across: str,
    up: str,
    labels: Sequence[tuple[float, str]],
    ticks: Sequence[float],
    y: Scale,
    right: float,
    height: int,
) -> Iterable[str]:
    digits = max(len(f"{tick:.6f}".rstrip("0").partition(".")[2]) for tick in ticks)
    for tick in ticks:
        place = y(tick)
        ends = f'x1="{LEFT}" x2="{right:.1f}" y1="{place:.1f}" y2="{place:.1f}"'
        yield f'<line class="grid" {ends}/>'
        shown = f"{tick:.{digits}f}".replace("0.", ".", 1) if abs(tick) < 1 else f"{tick:g}"
        yield f'<text class="tick end" x="{LEFT - 6}" y="{place + 4:.1f}">{shown}</text>'
    for across_place, name in labels:
        rows = [row for part in name.split("\n") for row in textwrap.wrap(part, _TICK)]
        for number, row in enumerate(rows[:3]):
            down = height - BOTTOM + 16 + _LINE * number
            yield (
                f'<text class="tick middle" x="{across_place:.1f}" y="{down:.0f}">'
                f"{escape(row)}</text>"
            )
    yield f'<text class="title" x="0" y="12">{escape(up)}</text>'
    if across:
        corner = f'x="{right:.1f}" y="{height - 10}"'
        yield f'<text class="title end" {corner}>{escape(across)}</text>'


def _dot(dot: Dot, across: float, y: Scale, numbers: str, lowest: float = -math.inf) -> str:
    up = y(dot.y)
    spread = ""
    if dot.spread > 0:
        spread = (
            f'<line class="spread" x1="{across:.1f}" x2="{across:.1f}" '
            f'y1="{y(max(dot.y - dot.spread, lowest)):.1f}" y2="{y(dot.y + dot.spread):.1f}"/>'
        )
    if dot.shape % _SHAPES == 1:
        shape = f'<rect x="{across - 3.5:.1f}" y="{up - 3.5:.1f}" width="7" height="7"/>'
    elif dot.shape % _SHAPES == 2:
        corners = ((across, up - 4.5), (across + 4, up + 3), (across - 4, up + 3))
        points = " ".join(f"{one:.1f},{other:.1f}" for one, other in corners)
        shape = f'<polygon points="{points}"/>'
    else:
        shape = f'<circle cx="{across:.1f}" cy="{up:.1f}" r="3.5"/>'
    return (
        f'<g class="dot shape{dot.shape % _SHAPES}">{spread}{shape}'
        f"<title>{escape(dot.name)}: {escape(numbers)}</title></g>"
    )


def _labels(dots: Sequence[Dot], x: Scale, y: Scale) -> Iterable[str]:
    """Every label at the nearest place to its dot that is free, with a thin line to it if far."""
    taken = [(x(dot.x) - 5, y(dot.y) - 5, x(dot.x) + 5, y(dot.y) + 5) for dot in dots]
    for dot in sorted((dot for dot in dots if dot.label), key=lambda dot: -dot.y):
        label = _cut(dot.label, _NAME)
        across, up, width = x(dot.x), y(dot.y), _LETTER * len(label)
        for left, middle in _around(across, up, width):
            box = (left, middle - 6, left + width, middle + 6)
            inside = box[0] >= LEFT and box[2] <= WIDTH and TOP <= box[1] <= HEIGHT - BOTTOM - 12
            if inside and not any(_overlap(box, other) for other in taken):
                break
        else:
            left, middle = across + 8, up  # there is no room at all
        taken.append((left, middle - 6, left + width, middle + 6))
        near = min(max(across, left), left + width)
        if math.hypot(near - across, middle - up) > 14:
            yield (
                f'<line class="leader" x1="{across:.1f}" y1="{up:.1f}" x2="{near:.1f}" '
                f'y2="{middle:.1f}"/>'
            )
        yield f'<text x="{left:.1f}" y="{middle + 4:.1f}">{escape(label)}</text>'


def _around(across: float, up: float, width: float) -> Iterable[tuple[float, float]]:
    """Places for a label around a dot, the nearest first: its left end and its middle line."""
    for far in (0.0, 60.0, 120.0, 180.0):
        for step in range(25):
            off = 6.0 * step
            aside = far + 8 + off / 3
            for left in (across + aside, across - aside - width, across - width / 2):
                yield from ((left, up - off), (left, up + off))


def _overlap(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _apart(places: Sequence[float], low: float, high: float) -> list[float]:
    """Places between two ends, moved as little as may be so that labels do not overlap."""
    groups: list[list[int]] = []

    def first(group: Sequence[int]) -> float:
        reach = _LINE * (len(group) - 1)
        return max(min(fmean(places[one] for one in group) - reach / 2, high - reach), low)

    for one in sorted(range(len(places)), key=places.__getitem__):
        groups.append([one])
        while len(groups) > 1 and (first(groups[-2]) + _LINE * len(groups[-2]) > first(groups[-1])):
            groups[-2:] = [groups[-2] + groups[-1]]
    moved = {
        one: first(group) + _LINE * number for group in groups for number, one in enumerate(group)
    }
    return [moved[one] for one in range(len(places))]


def _svg(title: str, height: int, parts: Iterable[str]) -> str:
    return (
        f'<svg class="plot" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="{escape(title)}">{"".join(parts)}</svg>'
    )
