"""Curves of input token coverage: how much of a text the first k tokens of its vector name.

"Drop your Decoder" (SIGIR 2024), figures 2 and 4, of the models that cells began with.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean

from isthmus.benchmarks.protocol.cells import CellResult
from isthmus.benchmarks.report.drawing import Dot, lines
from isthmus.benchmarks.report.outcomes import Outcomes
from isthmus.benchmarks.report.score_tables import shown
from isthmus.evaluation.significance import letters_of
from isthmus.evaluation.tables import Cell, Table

CAPTION = (
    "The mean share of a text's tokens among the first k that its vector names, before "
    "fine-tuning, on documents held out of pre-training. For reference: the share reached by "
    "naming the k most frequent tokens for every text, and the highest that k tokens can reach."
)
_GUIDES = {"constant": "most frequent tokens", "ceiling": "most there is"}  # no names of starts
_MEASURED = re.compile(r"coverage/(?:(constant|ceiling)_)?at_(\d+)")
Curve = dict[int, float]


@dataclass(frozen=True)
class CoverageCurves:
    """The curves, by k, of the starts that were pre-trained on one corpus."""

    corpus: str
    k: tuple[int, ...]
    starts: dict[str, Curve]
    guides: dict[str, Curve]
    letters: dict[str, str]

    def table(self) -> Table:
        """A row per start and guide, a column per k."""
        best = {k: max(curve.get(k, -1.0) for curve in self.starts.values()) for k in self.k}
        rows = [
            (
                Cell(self.letters[start]),
                Cell(start),
                *(Cell(_share(curve, k), best=curve.get(k) == best[k]) for k in self.k),
            )
            for start, curve in self.starts.items()
        ]
        for name, curve in self.guides.items():
            shares = (Cell(_share(curve, k), quiet=True) for k in self.k)
            rows.append((Cell(""), Cell(name, quiet=True), *shares))
        caption = f"Input token coverage by k, {self.corpus}. {CAPTION}"
        return Table(("#", "start", *map(str, self.k)), tuple(rows), caption, names=2)

    def plot(self) -> str:
        """The curves as SVG, the guides dashed."""
        up = f"{self.corpus}: input token coverage by k"
        series = [(name, self._dots(name, curve)) for name, curve in self.starts.items()]
        guides = [(name, self._dots(name, curve)) for name, curve in self.guides.items()]
        return lines(up, up, [f"{k:,}" for k in self.k], series, guides)

    def _dots(self, name: str, curve: Curve) -> list[Dot]:
        return [
            Dot("", f"{name}, k {k:,}", place, curve[k])
            for place, k in enumerate(self.k)
            if k in curve
        ]


def coverage_curves(outcomes: Outcomes) -> list[CoverageCurves]:
    """The curves of every corpus on which the probe measured some, averaged over seeds."""
    found: dict[str, dict[str, dict[int, dict[tuple[str, int], float]]]] = {}
    for result in outcomes.cells:
        for name, k, value in _measured(outcomes, result):
            corpus = found.setdefault(_corpus(outcomes, result), defaultdict(dict))
            # Cells of one pre-training have the same numbers: it counts once.
            trained = result.cell.start, result.cell.pretraining_seed
            corpus[name].setdefault(k, {})[trained] = value
    return [
        CoverageCurves(
            corpus,
            tuple(sorted({k for curve in curves.values() for k in curve})),
            {name: _means(curves[name]) for name in outcomes.starts if name in curves},
            {name: _means(curves[name]) for name in _GUIDES.values() if name in curves},
            letters_of(outcomes.starts),
        )
        for corpus, curves in found.items()
    ]


def _measured(outcomes: Outcomes, result: CellResult) -> Iterator[tuple[str, int, float]]:
    """What was measured for a cell: the name of a start or guide, k, and the share."""
    start = result.cell.start
    for name, probes in (
        (_before(outcomes, start), result.probes_before),
        (start, result.probes),
    ):
        for probe, value in probes.items():
            if name is not None and (measured := _MEASURED.fullmatch(probe)):
                guide, k = measured.groups()
                yield _GUIDES[guide] if guide else name, int(k), value


def _corpus(outcomes: Outcomes, result: CellResult) -> str:
    """What the start of a cell was pre-trained on: a collection of the protocol, or a spec."""
    protocol = outcomes.protocol
    collection = protocol.tasks[result.cell.task].collection
    own = protocol.starts[result.cell.start].corpus
    return own or protocol.collections[collection].corpus or collection


def _before(outcomes: Outcomes, name: str) -> str | None:
    """The start whose model another one goes on from; None where the protocol has no such start."""
    starts = outcomes.protocol.starts
    if (after := starts[name].after) is not None:
        return after
    untrained = (other for other, one in starts.items() if one.recipe is None)
    return next((other for other in untrained if starts[other].model == starts[name].model), None)


def _means(curve: dict[int, dict[tuple[str, int], float]]) -> Curve:
    return {k: fmean(values.values()) for k, values in curve.items()}


def _share(curve: Curve, k: int) -> str:
    return shown(curve[k]) if k in curve else "–"
