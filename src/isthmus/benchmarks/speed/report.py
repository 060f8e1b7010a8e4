"""What was measured: rows, a table of them, a plot, and the files that keep them."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from isthmus.benchmarks.speed.contestants import Turn
from isthmus.config.output import write_json, writing
from isthmus.evaluation.tables import Cell, Table
from isthmus.progress import notice

PLAIN = "plain Hugging Face"
REFERENCE = "mlm"
RESULTS = "results.json"
# Throughput lost against masked LM: "Drop your Decoder" (SIGIR 2024), beside recipes of the same
# decoders.
_PAPER = {"bow": 0.012, "autoencoding": 0.174, "autoregressive": 0.202, "retromae": 0.682}
_COLUMNS = (
    "texts × length", "recipe", "sequences/s", "tokens/s", "TFLOP/s", "of chip", "of mlm's", "GiB",
    "loss", "by arithmetic", "paper's", "× plain", "ms: data, masking, step",
)  # fmt: skip


@dataclass(frozen=True)
class Round:
    """One turn of every contestant, and what the chip could do at that moment."""

    turns: dict[str, Turn]
    chip: float  # operations per second of a matrix product


@dataclass(frozen=True)
class Row:
    """One recipe at one shape; what could not be measured is None."""

    length: int
    texts: int  # per step
    recipe: str
    error: str | None = None
    rates: tuple[float, ...] = ()  # texts per second of every round
    tokens: float | None = None  # per second, without padding
    operations: float | None = None  # useful ones, per text
    useful: float | None = None  # useful operations per second
    chip: float | None = None  # operations per second of a matrix product
    of_chip: float | None = None
    of_masked_lm: float | None = None  # useful operations per second, as a share of masked LM's
    peak: int | None = None  # bytes
    lost: float | None = None  # share of masked LM's texts per second
    lost_by_arithmetic: float | None = None
    lost_in_paper: float | None = None
    against_plain: float | None = None  # texts per second, as a multiple of the plain loop's
    step: float | None = None  # seconds
    data: float | None = None  # seconds to make a step's batch, on one core of the host
    masking: float | None = None  # seconds to hide its tokens, on the device

    @property
    def shape(self) -> str:
        """Texts and tokens of a step."""
        return f"{self.texts} × {self.length}"

    @property
    def rate(self) -> float | None:
        """Texts per second, the median of all rounds."""
        return median(self.rates) if self.rates else None


def measured(length: int, texts: int, recipe: str, rounds: Sequence[Round]) -> Row:
    """The row of a recipe that took part in all rounds; compared with others turn by turn."""
    turns = [each.turns[recipe] for each in rounds]
    useful = [None if t.operations is None else t.operations / t.seconds for t in turns]
    masked, plain = (
        _ratio([(ours.rate, theirs.rate) for ours, theirs in _pairs(recipe, other, rounds)])
        for other in (REFERENCE, PLAIN)
    )
    work = _ratio(
        [
            (ours.operations / ours.texts, theirs.operations / theirs.texts)
            for ours, theirs in _pairs(recipe, REFERENCE, rounds)
            if ours.operations is not None and theirs.operations is not None
        ]
    )
    known = [value for value in useful if value is not None]
    first = turns[0]
    return Row(
        length=length,
        texts=texts,
        recipe=recipe,
        rates=tuple(turn.rate for turn in turns),
        tokens=median(turn.tokens / turn.seconds for turn in turns),
        operations=None if first.operations is None else first.operations / first.texts,
        useful=median(known) if known else None,
        chip=median(each.chip for each in rounds),
        of_chip=_ratio([(mine, each.chip) for mine, each in zip(known, rounds, strict=False)]),
        of_masked_lm=None if masked is None or work is None else masked * work,
        peak=max((turn.peak for turn in turns if turn.peak is not None), default=None),
        lost=None if masked is None else 1 - masked,
        lost_by_arithmetic=None if work is None else 1 - 1 / work,
        lost_in_paper=_PAPER.get(recipe),
        against_plain=plain,
        step=_median(turn.step for turn in turns),
        data=_median(turn.data for turn in turns),
        masking=_median(turn.masking for turn in turns),
    )


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _pairs(recipe: str, other: str, rounds: Sequence[Round]) -> list[tuple[Turn, Turn]]:
    return [(each.turns[recipe], each.turns[other]) for each in rounds if other in each.turns]


def _ratio(values: Sequence[tuple[float, float]]) -> float | None:
    return median(one / other for one, other in values) if values else None


@dataclass(frozen=True)
class SpeedReport:
    """All rows, and what they were measured with."""

    rows: tuple[Row, ...]
    rounds: int
    conditions: str  # chip, precision, model, texts, versions

    @classmethod
    def read(cls, folder: Path) -> SpeedReport | None:
        """What `write` wrote; None where it has not written yet."""
        file = folder / RESULTS
        if not file.is_file():
            return None
        values = json.loads(file.read_text(encoding="utf-8"))
        rows = (Row(**{**row, "rates": tuple(row["rates"])}) for row in values.pop("rows"))
        return cls(tuple(rows), **values)

    def table(self) -> Table:
        """A row for every recipe and shape."""
        caption = (
            f"{self.conditions} Medians. TFLOP/s: useful operations, without padding and logits "
            "that nothing reads; of chip: of what a matrix product reached in the same round; "
            "of mlm's: useful operations per second beside those of mlm; loss: of mlm's sequences "
            f"per second; × plain: sequences per second beside those of {PLAIN}; ms: to make a "
            "step's batch on one core, to hide its tokens on the chip, and for the whole step."
        )
        failed = [
            f"{row.recipe} at {row.length} failed: {row.error}."
            for row in self.rows
            if row.error is not None
        ]
        return Table(
            _COLUMNS,
            tuple(map(_cells, self.rows)),
            " ".join([caption, *failed]),
            names=2,
            interval_note=f"Ranges: the slowest and the fastest of {self.rounds} rounds.",
        )

    def write(self, folder: Path) -> None:
        """results.json and table.md, as far as there are rows."""
        write_json(folder / RESULTS, asdict(self))
        with writing(folder):
            (folder / "table.md").write_text(self.table().markdown(), encoding="utf-8")

    def plot(self, file: Path) -> None:
        """Sequences per second and share of the chip, a pair of panels for every length."""
        if importlib.util.find_spec("matplotlib") is None:
            notice("for a plot: pip install 'isthmus[report]'")
            return
        from matplotlib.figure import Figure

        lengths = sorted({row.length for row in self.rows}, reverse=True)
        most = max(sum(row.length == length for row in self.rows) for length in lengths)
        size = (9.0, len(lengths) * (1.0 + 0.22 * most))
        figure = Figure(figsize=size, layout="constrained")
        panels: Any = figure.subplots(len(lengths), 2, squeeze=False)
        for (speeds, shares), length in zip(panels, lengths, strict=True):
            rows = [row for row in self.rows if row.length == length and row.rate is not None]
            rows.sort(key=lambda row: row.rate or 0)
            names = [row.recipe for row in rows]
            colours = ["0.6" if row.recipe == PLAIN else "C0" for row in rows]
            rates = [row.rate for row in rows]
            spread = [
                [(row.rate or 0) - min(row.rates) for row in rows],
                [max(row.rates) - (row.rate or 0) for row in rows],
            ]
            speeds.barh(names, rates, xerr=spread, color=colours, error_kw={"linewidth": 0.8})
            speeds.set_xlabel(f"sequences/s, length {length}", fontsize=8)
            shares.barh(names, [100 * (row.of_chip or 0) for row in rows], color=colours)
            shares.set_xlabel("useful operations, % of a matrix product's", fontsize=8)
            shares.set_yticklabels([])
            for panel in (speeds, shares):
                panel.tick_params(labelsize=7)
        with writing(file):
            figure.savefig(file)


def _cells(row: Row) -> tuple[Cell, ...]:
    if row.rate is None:
        texts = [row.shape, row.recipe, "failed", *[""] * (len(_COLUMNS) - 3)]
        return tuple(Cell(text) for text in texts)
    spread = f"{_number(min(row.rates))}–{_number(max(row.rates))}"
    return (
        Cell(row.shape),
        Cell(row.recipe),
        Cell(_number(row.rate), interval=spread),
        Cell(_number(row.tokens)),
        Cell(_number(None if row.useful is None else row.useful / 1e12)),
        Cell(_share(row.of_chip)),
        Cell(_share(row.of_masked_lm)),
        Cell("–" if row.peak is None else f"{row.peak / 2**30:.1f}"),
        Cell(_share(row.lost)),
        Cell(_share(row.lost_by_arithmetic)),
        Cell(_share(row.lost_in_paper)),
        Cell("–" if row.against_plain is None else f"{row.against_plain:.2f}"),
        Cell(_milliseconds(row)),
    )


def _milliseconds(row: Row) -> str:
    if row.data is None or row.masking is None or row.step is None:
        return "–"
    return ", ".join(_number(1e3 * value) for value in (row.data, row.masking, row.step))


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"
