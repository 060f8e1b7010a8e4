"""What the probes saw, at the end: a table in a file, a plot, and a few lines for the user."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from isthmus.config.output import writing
from isthmus.pretrain.probe import Probe
from isthmus.pretrain.probing import PREFIX, looks

TABLE = "probes.tsv"
PLOT = "probes.svg"


def report_probes(
    history: Sequence[Mapping[str, float]], probes: Mapping[str, Probe], output: Path
) -> str:
    """Writes table and plot into a folder; returns where each probe began, was best and ended."""
    rows = looks(history)
    if not rows:
        return ""
    # Sorted: a log that was read back has them in another order than one that was just written.
    names = sorted(name for name in rows[-1] if name.startswith(PREFIX))
    with writing(output):
        lines = ["\t".join(["step", *(name.removeprefix(PREFIX) for name in names)])]
        lines += ["\t".join(str(row.get(name, "")) for name in ["step", *names]) for row in rows]
        (output / TABLE).write_text("\n".join(lines) + "\n", encoding="utf-8")
        plotted = plot_probes(rows, probes, output / PLOT)
    told = [_line(name, probe, rows) for name, probe in probes.items()]
    where = f"{output / TABLE}" + (
        f", {output / PLOT}" if plotted else "; for a plot: pip install 'isthmus[report]'"
    )
    return "\n".join([*told, f"probes: {where}"])


def _line(name: str, probe: Probe, rows: Sequence[Mapping[str, float]]) -> str:
    values = [row[PREFIX + name] for row in rows]
    pick = max if probe.better == "higher" else min
    numbers = [place for place, value in enumerate(values) if not math.isnan(value)] or [0]
    best = pick(numbers, key=values.__getitem__)
    return (
        f"{name:<14} {values[0]:8.4f} at the start, {values[-1]:8.4f} at the end, "
        f"best ({probe.better}) {values[best]:8.4f} at step {int(rows[best]['step']):,}"
    )


def plot_probes(
    rows: Sequence[Mapping[str, float]], probes: Mapping[str, Probe], file: Path
) -> bool:
    """One panel per probe, with the lines that explain it; False where matplotlib is missing."""
    if importlib.util.find_spec("matplotlib") is None:
        return False
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.6 * len(probes), 3.0), layout="constrained")
    panels: Any = figure.subplots(1, len(probes), squeeze=False)[0]
    steps = [row["step"] for row in rows]
    for panel, (name, probe) in zip(panels, probes.items(), strict=True):
        panel.plot(steps, [row[PREFIX + name] for row in rows], marker=".", label=name)
        explaining = [f"{PREFIX}{name}/{line}" for line in probe.drawn]
        for key in explaining:
            panel.plot(
                steps,
                [row.get(key) for row in rows],
                linestyle="--",
                linewidth=1,
                label=key.rpartition("/")[2],
            )
        panel.set_title(f"{name} ({probe.better} is better)", fontsize=9)
        panel.set_xlabel("optimiser step", fontsize=8)
        panel.tick_params(labelsize=8)
        if explaining:
            panel.legend(fontsize=7)
    figure.savefig(file)
    return True
