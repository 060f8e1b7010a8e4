"""Measures over the steps of a training: a table in a file, a plot, and lines for the user."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from isthmus.config.output import writing
from isthmus.training.evaluation_callback import Better, best_place, evaluations


class Curve(Protocol):
    """How to read a number that is measured again and again."""

    @property
    def better(self) -> Better:
        """Whether higher or lower values are better."""

    @property
    def drawn(self) -> tuple[str, ...]:
        """Further numbers to draw in the same panel."""


def report_curves(
    history: Sequence[Mapping[str, float]],
    topic: str,
    curves: Mapping[str, Curve],
    output: Path,
    name: str,
) -> str:
    """Writes NAME.tsv and NAME.svg into a folder; returns first, best and last values."""
    rows = evaluations(history, topic)
    if not rows:
        return ""
    # Sorted: a log that was read back has them in another order than one that was just written.
    names = sorted(key for key in rows[-1] if key.startswith(f"{topic}/"))
    table, plot = output / f"{name}.tsv", output / f"{name}.svg"
    with writing(output):
        lines = ["\t".join(["step", *(key.removeprefix(f"{topic}/") for key in names)])]
        lines += ["\t".join(str(row.get(key, "")) for key in ["step", *names]) for row in rows]
        table.write_text("\n".join(lines) + "\n", encoding="utf-8")
        plotted = _plot(rows, topic, curves, plot)
    summary = [_line(key, rows, f"{topic}/{key}", curve) for key, curve in curves.items()]
    where = f"{table}" + (f", {plot}" if plotted else "; for a plot: pip install 'isthmus[report]'")
    return "\n".join([*summary, f"{name}: {where}"])


def _line(name: str, rows: Sequence[Mapping[str, float]], key: str, curve: Curve) -> str:
    values = [row[key] for row in rows]
    best = best_place(values, curve.better)
    return (
        f"{name:<14} {values[0]:8.4f} at the start, {values[-1]:8.4f} at the end, "
        f"best ({curve.better}) {values[best]:8.4f} at step {int(rows[best]['step']):,}"
    ) + "".join(
        f", {further} {rows[-1][f'{key}/{further}']:.4f}"
        for further in curve.drawn
        if f"{key}/{further}" in rows[-1]
    )


def _plot(
    rows: Sequence[Mapping[str, float]], topic: str, curves: Mapping[str, Curve], file: Path
) -> bool:
    """One panel per curve, with the lines that explain it; False where matplotlib is missing."""
    if importlib.util.find_spec("matplotlib") is None:
        return False
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.6 * len(curves), 3.0), layout="constrained")
    panels: Any = figure.subplots(1, len(curves), squeeze=False)[0]
    steps = [row["step"] for row in rows]
    for panel, (name, curve) in zip(panels, curves.items(), strict=True):
        panel.plot(steps, [row[f"{topic}/{name}"] for row in rows], marker=".", label=name)
        for line in curve.drawn:
            values = [row.get(f"{topic}/{name}/{line}") for row in rows]
            panel.plot(steps, values, linestyle="--", linewidth=1, label=line)
        panel.set_title(f"{name} ({curve.better} is better)", fontsize=9)
        panel.set_xlabel("optimiser step", fontsize=8)
        panel.tick_params(labelsize=8)
        if curve.drawn:
            panel.legend(fontsize=7)
    figure.savefig(file)
    return True
