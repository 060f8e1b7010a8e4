"""Input token coverage of several models over a sample of a corpus, as curves.

"Drop your Decoder" (SIGIR 2024), algorithm 1 and figures 2 and 4: the share of a text's tokens that
are among the first k that its vector names, for one k after the other.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from isthmus.evaluation.tables import Cell, Table
from isthmus.inspection.vocabulary_view import VocabularyView
from isthmus.pretraining.probes.coverage import covered, reading_lines
from isthmus.progress import Bar, notice

_CONSTANT, _CEILING = "most frequent", "ceiling"


@dataclass(frozen=True)
class Coverage:
    """Mean shares of a text's tokens among the first k named, for each model and every k.

    Two lines to read them by: `constant` is what the k most frequent tokens of the corpus reach for
    every text, `ceiling` the most that k tokens can.
    """

    corpus: str
    documents: int
    k: tuple[int, ...]
    models: dict[str, tuple[float, ...]]
    constant: tuple[float, ...]
    ceiling: tuple[float, ...]

    def table(self) -> Table:
        """A row per model and line, a column per k; the best model of each marked."""
        best = [max(shares) for shares in zip(*self.models.values(), strict=True)]
        several = len(self.models) > 1
        rows = [
            (
                Cell(name),
                *(
                    Cell(_short(share), best=several and share == most)
                    for share, most in zip(shares, best, strict=True)
                ),
            )
            for name, shares in self.models.items()
        ]
        for name, shares in ((_CONSTANT, self.constant), (_CEILING, self.ceiling)):
            rows.append((Cell(name, quiet=True), *(Cell(_short(x), quiet=True) for x in shares)))
        caption = (
            f"Input token coverage: the mean share, over {self.documents:,} documents of "
            f"{self.corpus}, of a text's tokens among the first k that its vector names."
        )
        return Table(("k", *map(str, self.k)), tuple(rows), caption)

    def save(self, folder: Path) -> None:
        """Writes coverage.tsv, coverage.md and, where matplotlib is installed, coverage.svg."""
        lines = ["\t".join(["k", *self.models, "constant", "ceiling"])]
        columns = (*self.models.values(), self.constant, self.ceiling)
        for k, *shares in zip(self.k, *columns, strict=True):
            lines.append("\t".join([str(k), *(f"{share:.6f}" for share in shares)]))
        (folder / "coverage.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
        (folder / "coverage.md").write_text(self.table().markdown(), encoding="utf-8")
        if not self.plot(folder / "coverage.svg"):
            notice("for a plot of the coverage: pip install 'isthmus[report]'")

    def plot(self, file: Path) -> bool:
        """Draws the curves into a file; False where matplotlib is missing."""
        if importlib.util.find_spec("matplotlib") is None:
            return False
        from matplotlib.figure import Figure

        figure = Figure(figsize=(7.6, 4.4), layout="constrained")
        panel: Any = figure.subplots()
        best_first = sorted(self.models.items(), key=lambda each: -sum(each[1]))
        for number, (name, shares) in enumerate(best_first):
            style = ("-", "-.", ":")[number // 10 % 3]  # there are ten colours
            panel.plot(self.k, shares, linestyle=style, marker=".", label=name)
        panel.plot(self.k, self.constant, "--", color="grey", linewidth=1, label=_CONSTANT)
        panel.plot(self.k, self.ceiling, ":", color="grey", linewidth=1, label=_CEILING)
        panel.set_xscale("log")
        panel.set_xticks(self.k, [f"{k:,}" for k in self.k])
        panel.minorticks_off()
        panel.set_ylim(0, 1.02)
        panel.set_xlabel("k: tokens that the vector names first")
        panel.set_ylabel("input token coverage")
        panel.set_title(f"{self.documents:,} documents of {self.corpus}", fontsize=9)
        panel.spines[["top", "right"]].set_visible(False)
        panel.legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
        figure.savefig(file)
        return True


def coverage_of(view: VocabularyView, texts: Sequence[str], k: Sequence[int]) -> tuple[float, ...]:
    """The mean coverage at each k of texts that have tokens."""
    total, count = torch.zeros(max(k), dtype=torch.float64), 0
    with Bar(f"coverage of {view.encoder.name}", len(texts), "documents") as bar:
        for block, weights in view.weights(sorted(texts, key=len)):
            sets = view.sets(block).to(weights.device)
            total += _filled(covered(weights, sets, max(k)), max(k)).sum(0).cpu()
            count += int(sets.any(1).sum())
            bar.advance(len(block))
    return _at(total / max(count, 1), k)


def lines_of(
    view: VocabularyView, texts: Sequence[str], frequent: Tensor, k: Sequence[int]
) -> dict[str, tuple[float, ...]]:
    """The two lines that coverage is read by, `constant` and `ceiling`, at each k."""
    sets = view.sets(texts)
    known = sets[sets.any(1)]
    found = reading_lines(known, frequent, max(k))
    return {name: _at(_filled(curve, max(k)).mean(0), k) for name, curve in found.items()}


def _filled(curves: Tensor, length: int) -> Tensor:
    """The curves in float64, which stay as they are where there are no more tokens."""
    missing = curves[:, -1:].expand(-1, length - curves.shape[1])
    return torch.cat([curves, missing], dim=1).double()


def _at(curve: Tensor, k: Sequence[int]) -> tuple[float, ...]:
    return tuple(float(curve[one - 1]) for one in k)


def _short(share: float) -> str:
    """Three digits, without the zero that stands before the point."""
    return f"{share:.3f}".removeprefix("0")
