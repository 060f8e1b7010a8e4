"""Results as tables: terminal, markdown and LaTeX from one description, and scores as tsv."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.table import Table as TerminalTable
from rich.text import Text

from isthmus.errors import visible
from isthmus.evaluation.report import Report

_TESTS = {"t_test": "paired two-sided t-test", "randomisation": "paired randomisation test"}
_CORRECTIONS = {"bonferroni": "Bonferroni", "holm": "Holm", "none": "no correction"}
_LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
        "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", "\n": " ",
        **{character: f"\\{character}" for character in "&%$#_{}"},
    }
)  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """One entry of a table: text, significance letters, interval, and whether it is the best."""

    text: str
    letters: str = ""
    interval: str = ""
    best: bool = False


@dataclass(frozen=True)
class Table:
    """What a table says, apart from how it is drawn; the first `names` columns hold words."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    caption: str
    names: int = 1
    interval_note: str = ""
    """What the intervals are, said wherever they are shown."""

    def terminal(self) -> TerminalTable:
        """The table for a rich console."""
        caption = Text(f"{self.caption} {self.interval_note}".strip())
        drawn = TerminalTable(box=SIMPLE_HEAD, caption=caption, caption_justify="left")
        for place, column in enumerate(self.columns):
            drawn.add_column(
                Text(visible(column)),
                justify="left" if place < self.names else "right",
                overflow="fold",  # a narrow window must not cut digits off
                min_width=max((len(row[place].interval) for row in self.rows), default=0),
            )
        for row in self.rows:
            drawn.add_row(*map(_terminal, row))
        return drawn

    def markdown(self) -> str:
        """The table as GitHub renders it."""
        lines = [
            map(_escape_markdown, self.columns),
            ("---" if place < self.names else "---:" for place in range(len(self.columns))),
            *(map(_markdown, row) for row in self.rows),
        ]
        body = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        caption = _escape_markdown(f"{self.caption} {self.interval_note}".strip())
        return f"{body}\n\n{caption}\n"

    def latex(self) -> str:
        """The table as a LaTeX float; needs the package booktabs. Intervals are left out."""
        layout = "l" * self.names + "r" * (len(self.columns) - self.names)
        return "\n".join(
            [
                r"\begin{table}",
                r"\centering",
                rf"\caption{{{_escape_latex(self.caption)}}}",
                rf"\begin{{tabular}}{{{layout}}}",
                r"\toprule",
                _latex_row(map(_escape_latex, self.columns)),
                r"\midrule",
                *(_latex_row(map(_latex, row)) for row in self.rows),
                r"\bottomrule",
                r"\end{tabular}",
                r"\end{table}",
                "",
            ]
        )


def report_table(report: Report) -> Table:
    """One row per system, one column per measure: mean, letters of beaten systems, interval."""
    rows = [
        (
            Cell(report.letters[system]),
            Cell(system),
            *(_score(report, system, measure) for measure in report.measures),
        )
        for system in report.systems
    ]
    settings = report.settings
    note = (
        f"Ranges: {settings.confidence:.0%} bootstrap interval of the mean "
        f"({settings.bootstrap_samples:,} samples, seed {settings.seed})."
    )
    columns = ("#", "system", *report.measures)
    return Table(columns, tuple(rows), _caption(report), names=2, interval_note=note)


def per_query_tsv(report: Report) -> str:
    """One line per measure and query, one column per system, every digit kept."""
    written = io.StringIO()
    writer = csv.writer(written, delimiter="\t", lineterminator="\n")
    writer.writerow(["measure", "query", *report.systems])
    for measure, by_system in report.per_query.items():
        for query in by_system[report.systems[0]]:
            values = [by_system[system][query] for system in report.systems]
            writer.writerow([measure, query, *values])
    return written.getvalue()


def format_score(value: float) -> str:
    """A score as the tables print it."""
    return f"{value:.3f}"


def _score(report: Report, system: str, measure: str) -> Cell:
    low, high = report.intervals[measure][system]
    return Cell(
        format_score(report.means[measure][system]),
        letters=report.comparisons[measure].beats[system],
        interval=f"{format_score(low)}–{format_score(high)}",
        best=len(report.systems) > 1 and system in report.best(measure),
    )


def _caption(report: Report) -> str:
    settings = report.settings
    sentences = [f"Means over {report.queries:,} judged queries."]
    pairs = len(report.comparisons[report.measures[0]].pairs)
    if pairs:
        test = _TESTS[settings.test]
        if settings.test == "randomisation":
            test += f" with {settings.randomisation_samples:,} samples"
        sentences.append(
            f"Letters: significantly better than the systems of those letters ({test}, "
            f"{_CORRECTIONS[settings.correction]} over {pairs} pairs per measure, "
            f"level {settings.alpha:g})."
        )
    for system, counts in report.counts.items():
        if not counts.judged_documents:
            sentences.append(f"Not one document that {system} retrieved is judged.")
    if settings.drop_self:
        sentences.append("Results whose document is the query itself were dropped.")
    return " ".join(sentences)


def _terminal(cell: Cell) -> Text:
    text = Text(visible(cell.text), style="bold" if cell.best else "")
    if cell.letters:
        text.append(f"^{cell.letters}")
    if cell.interval:
        text.append(f"\n{cell.interval}", style="dim")
    return text


def _markdown(cell: Cell) -> str:
    text = _escape_markdown(cell.text)
    text = f"**{text}**" if cell.best else text
    if cell.letters:
        text += f"<sup>{cell.letters}</sup>"
    return f"{text} ({cell.interval})" if cell.interval else text


def _latex(cell: Cell) -> str:
    text = _escape_latex(cell.text)
    text = rf"\textbf{{{text}}}" if cell.best else text
    return f"{text}$^{{{cell.letters}}}$" if cell.letters else text


def _latex_row(cells: Iterable[str]) -> str:
    return " & ".join(cells) + r" \\"


def _escape_markdown(text: str) -> str:
    # An underscore inside a word is no emphasis: R_cap@100 stays readable.
    special = re.sub(r"[\\`*\[\]<|]|(?<![^\W_])_|_(?![^\W_])", r"\\\g<0>", text)
    return special.replace("\n", " ")


def _escape_latex(text: str) -> str:
    return text.translate(_LATEX)
