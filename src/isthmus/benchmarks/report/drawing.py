"""Small plots as inline SVG: dots with letters, lines with letters, differences with intervals.

Text stays text, and colours come from the page's stylesheet: plots follow its light and dark.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape as escape_html

from isthmus.errors import visible

WIDTH, HEIGHT = 420, 300
LEFT, RIGHT, TOP, BOTTOM = 44, 22, 26, 40
_SHAPES = 3  # kinds of marks; further kinds begin again
_LETTER = 7.0  # width of a letter at the size of labels
_LINE = 12.0  # height of one

Scale = Callable[[float], float]


@dataclass(frozen=True)
class Dot:
    """A point to draw: its letter beside it, its name and numbers when pointed at."""

    letter: str
    name: str
    x: float
    y: float
    spread: float = 0.0
    shape: int = 0
    strong: bool = False


@dataclass(frozen=True)
class Interval:
    """A difference with its interval, and the words beside it."""

    name: str
    value: float
    low: float
    high: float
    says: str
    mark: str = ""
    """The stylesheet's classes: for, against, overall."""


def scatter(title: str, across: str, up: str, dots: Sequence[Dot], log: bool = False) -> str:
    """Dots over two numbers, each with its letter; the first axis by powers where `log`."""
    log = log and all(dot.x > 0 for dot in dots)
    x_ticks = _log_ticks([dot.x for dot in dots]) if log else _ticks([dot.x for dot in dots])
    y_ticks = _ticks([value for dot in dots for value in (dot.y - dot.spread, dot.y + dot.spread)])
    change: Scale = math.log10 if log else float
    x = _scale(x_ticks[0], x_ticks[-1], LEFT, WIDTH - RIGHT, change)
    y = _scale(y_ticks[0], y_ticks[-1], HEIGHT - BOTTOM, TOP)
    labels = [(x(tick), short(tick)) for tick in x_ticks]
    parts = [*_frame(across, up, labels, y_ticks, y)]
    taken = [(x(dot.x), y(dot.y)) for dot in dots]
    for dot in dots:
        parts.append(_dot(dot, x, y, f"{across} {short(dot.x)}, {up} {dot.y:.3f}"))
        parts.append(_label(dot, x(dot.x), y(dot.y), taken))
    return _svg(title, WIDTH, HEIGHT, parts)


def lines(
    title: str,
    up: str,
    places: Sequence[str],
    series: Sequence[tuple[str, Sequence[Dot]]],
    guides: Sequence[tuple[str, Sequence[Dot]]] = (),
) -> str:
    """A line per series over named places, 0, 1, …; its letter stands at its end.

    Guides are dashed, without letters.
    """
    dots = [dot for _, line in (*series, *guides) for dot in line]
    y_ticks = _ticks([dot.y for dot in dots])
    x = _scale(0, max(len(places) - 1, 1), LEFT + 14, WIDTH - RIGHT - 14)
    y = _scale(y_ticks[0], y_ticks[-1], HEIGHT - BOTTOM, TOP)
    labels = [(x(place), name) for place, name in enumerate(places)]
    parts = [*_frame("", up, labels, y_ticks, y)]
    for name, line in guides:
        path = " ".join(f"{x(dot.x):.1f},{y(dot.y):.1f}" for dot in line)
        shape = f'<polyline class="line guide" points="{path}">'
        parts.append(f"{shape}<title>{escape(name)}</title></polyline>")
    ends = _apart([y(line[-1].y) for _, line in series if line])
    for (letter, line), end in zip([one for one in series if one[1]], ends, strict=True):
        strong = " strong" if line[0].strong else ""
        path = " ".join(f"{x(dot.x):.1f},{y(dot.y):.1f}" for dot in line)
        parts.append(f'<polyline class="line{strong}" points="{path}"/>')
        parts += [_dot(dot, x, y, f"{up} {dot.y:.3f}") for dot in line]
        place = x(line[-1].x) + 8
        parts.append(
            f'<text class="letter" x="{place:.1f}" y="{end + 4:.1f}">{escape(letter)}</text>'
        )
    return _svg(title, WIDTH, HEIGHT, parts)


def forest(title: str, intervals: Sequence[Interval], band: float) -> str:
    """Differences with their intervals, one below the other; the band is what does not matter."""
    width, left, right, step, top = 720, 250, 520, 22, 22
    ends = [value for one in intervals for value in (one.low, one.high) if math.isfinite(value)]
    ticks = _ticks([*ends, *(one.value for one in intervals), -band, band, 0.0], 5)
    x = _scale(ticks[0], ticks[-1], left, right)
    gap = 8 if len(intervals) > 1 else 0  # after the first
    height = top + step * len(intervals) + gap + 6
    parts = [
        f'<rect class="band" x="{x(-band):.1f}" y="{top - 4}" '
        f'width="{x(band) - x(-band):.1f}" height="{height - top}"/>',
        f'<line class="zero" x1="{x(0):.1f}" x2="{x(0):.1f}" y1="{top - 4}" y2="{height - 4}"/>',
    ]
    parts += [
        f'<text class="tick middle" x="{x(tick):.1f}" y="12">{signed(tick)}</text>'
        for tick in ticks
    ]
    for row, one in enumerate(intervals):
        y = top + step * (row + 0.5) - 3 + (gap if row else 0)
        low, high = (min(max(x(end), left), right) for end in _finite(one))
        parts += [
            f'<text class="place {one.mark}" x="0" y="{y + 4:.1f}">{escape(_cut(one.name, 42))}'
            f"<title>{escape(one.name)}</title></text>",
            f'<line class="range {one.mark}" x1="{low:.1f}" x2="{high:.1f}" y1="{y}" y2="{y}"/>',
            f'<circle class="estimate {one.mark}" cx="{x(one.value):.1f}" cy="{y}" r="4"/>',
            f'<text class="says end {one.mark}" x="{right + 62}" y="{y + 4:.1f}">'
            f"{signed(one.value)}</text>",
            f'<text class="tick" x="{right + 76}" y="{y + 4:.1f}">{escape(one.says)}</text>',
        ]
    return _svg(title, width, height, parts, "forest")


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
    across: str, up: str, labels: Sequence[tuple[float, str]], ticks: Sequence[float], y: Scale
) -> Iterable[str]:
    digits = max(len(f"{tick:.6f}".rstrip("0").partition(".")[2]) for tick in ticks)
    for tick in ticks:
        place = y(tick)
        ends = f'x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{place:.1f}" y2="{place:.1f}"'
        yield f'<line class="grid" {ends}/>'
        shown = f"{tick:.{digits}f}".replace("0.", ".", 1) if abs(tick) < 1 else f"{tick:g}"
        yield f'<text class="tick end" x="{LEFT - 6}" y="{place + 4:.1f}">{shown}</text>'
    for across_place, name in labels:
        yield (
            f'<text class="tick middle" x="{across_place:.1f}" y="{HEIGHT - BOTTOM + 16}">'
            f"{escape(_cut(name, 18))}</text>"
        )
    yield f'<text class="title" x="0" y="12">{escape(up)}</text>'
    if across:
        corner = f'x="{WIDTH - RIGHT}" y="{HEIGHT - 6}"'
        yield f'<text class="title end" {corner}>{escape(across)}</text>'


def _dot(dot: Dot, x: Scale, y: Scale, numbers: str) -> str:
    across, up = x(dot.x), y(dot.y)
    kind = f"dot shape{dot.shape % _SHAPES}" + (" strong" if dot.strong else "")
    spread = ""
    if dot.spread > 0:
        spread = (
            f'<line class="spread" x1="{across:.1f}" x2="{across:.1f}" '
            f'y1="{y(dot.y - dot.spread):.1f}" y2="{y(dot.y + dot.spread):.1f}"/>'
        )
    if dot.shape % _SHAPES == 1:
        shape = f'<rect x="{across - 3.5:.1f}" y="{up - 3.5:.1f}" width="7" height="7"/>'
    elif dot.shape % _SHAPES == 2:
        corners = ((across, up - 4.5), (across + 4, up + 3), (across - 4, up + 3))
        points = " ".join(f"{one:.1f},{other:.1f}" for one, other in corners)
        shape = f'<polygon points="{points}"/>'
    else:
        shape = f'<circle cx="{across:.1f}" cy="{up:.1f}" r="4"/>'
    return (
        f'<g class="{kind}">{spread}{shape}<title>{escape(dot.name)}: {escape(numbers)}</title></g>'
    )


def _label(dot: Dot, x: float, y: float, taken: list[tuple[float, float]]) -> str:
    """The letter at the first free place around its dot."""
    width = _LETTER * len(dot.letter)
    around = ((8, 4), (-8 - width, 4), (-width / 2, -8), (-width / 2, 16), (7, -6), (7, 14))
    for across, down in around:
        centre = (x + across + width / 2, y + down - 4)
        if all(abs(centre[0] - a) > 9 or abs(centre[1] - b) > 9 for a, b in taken):
            break
    taken.append(centre)
    place = f'x="{x + across:.1f}" y="{y + down:.1f}"'
    return f'<text class="letter" {place}>{escape(dot.letter)}</text>'


def _apart(places: Sequence[float]) -> list[float]:
    """Places moved apart so that the letters at them do not overlap."""
    order = sorted(range(len(places)), key=places.__getitem__)
    moved = [0.0] * len(places)
    lowest = -math.inf
    for place in order:
        moved[place] = lowest = max(places[place], lowest + _LINE)
    shift = (sum(places) - sum(moved)) / max(len(places), 1)  # as far up as down
    shift = min(shift, HEIGHT - BOTTOM - 8 - lowest)
    return [place + shift for place in moved]


def _svg(title: str, width: int, height: int, parts: Iterable[str], kind: str = "plot") -> str:
    return (
        f'<svg class="{kind}" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{escape(title)}">{"".join(parts)}</svg>'
    )
