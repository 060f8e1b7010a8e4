"""Results as tables (terminal, HTML, markdown, LaTeX from one description) and as HTML pages."""

from __future__ import annotations

import io
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib.resources import files
from typing import Literal

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.constrain import Constrain
from rich.table import Table as TerminalTable
from rich.text import Text

from isthmus.errors import visible

_PLAIN = 100  # columns
_LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
        "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}",
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
    quiet: bool = False
    """No number, but what stands in its place: shown dimmed."""


@dataclass(frozen=True)
class Table:
    """What a table says, apart from how it is drawn; the first `names` columns hold words."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    caption: str
    names: int = 1
    interval_note: str = ""
    """What the intervals are, said wherever they are shown."""

    def terminal(self) -> Group:
        """The table for a rich console, and its caption, which may be wider than the table."""
        drawn = TerminalTable(box=SIMPLE_HEAD)
        for place, column in enumerate(self.columns):
            drawn.add_column(
                Text(visible(column)),
                justify=self._side(place),
                overflow="fold",  # a narrow window must not cut digits off
                min_width=max((len(row[place].interval) for row in self.rows), default=0),
            )
        for row in self.rows:
            drawn.add_row(*map(_terminal, row))
        caption = Text(visible(f"{self.caption} {self.interval_note}".strip()), style="dim italic")
        return Group(drawn, Constrain(caption, _PLAIN))

    def __rich__(self) -> Group:
        return self.terminal()

    def __str__(self) -> str:
        return plain_text(self)

    def _repr_html_(self) -> str:
        return self.html()

    def html(self, inline: bool = True) -> str:
        """The table as a notebook shows it: nothing in it is markup or a control character.

        Without `inline`, as the inside of a figure of isthmus's own pages: aligned by classes, the
        caption below the part that scrolls.
        """
        head = "".join(
            f"<th{self._aligned(place, inline)}>{escape_html(column)}</th>"
            for place, column in enumerate(self.columns)
        )
        rows = "".join(
            f"<tr>{''.join(self._html(cell, place, inline) for place, cell in enumerate(row))}</tr>"
            for row in self.rows
        )
        caption = escape_html(f"{self.caption} {self.interval_note}".strip())
        inner = f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
        if inline:
            return f"<table><caption>{caption}</caption>{inner}"
        return f"<div class=wide><table>{inner}</div><figcaption>{caption}</figcaption>"

    def _html(self, cell: Cell, place: int, inline: bool) -> str:
        text = escape_html(cell.text)
        text = f"<b>{text}</b>" if cell.best else text
        if cell.letters:
            text += f"<sup>{cell.letters}</sup>"
        if cell.interval:
            text += f"<br><small>{cell.interval}</small>"
        return f"<td{self._aligned(place, inline, cell.quiet)}>{text}</td>"

    def _aligned(self, place: int, inline: bool, quiet: bool = False) -> str:
        classes = "quiet " * quiet + "number " * (not inline and place >= self.names)
        style = f' style="text-align: {self._side(place)}"' if inline else ""
        return style + (f' class="{classes.strip()}"' if classes else "")

    def _side(self, place: int) -> Literal["left", "right"]:
        return "left" if place < self.names else "right"

    def markdown(self) -> str:
        """The table as GitHub renders it."""
        lines = [
            map(escape_markdown, self.columns),
            ("---" if place < self.names else "---:" for place in range(len(self.columns))),
            *(map(_markdown, row) for row in self.rows),
        ]
        body = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        caption = escape_markdown(f"{self.caption} {self.interval_note}".strip())
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


class Shown(ABC):
    """A result that shows itself as lines and tables: on terminals, in notebooks, as a text."""

    @abstractmethod
    def tables(self) -> Iterable[str | Table]:
        """Lines and tables, in the order in which they are shown."""

    def __rich__(self) -> Group:
        lines: list[RenderableType] = []
        for one in self.tables():
            if lines and isinstance(one, str) and isinstance(lines[-1], Table):
                lines.append("")  # else it would go on from the caption
            lines.append(Text(visible(one)) if isinstance(one, str) else one)
        return Group(*lines)

    def __repr__(self) -> str:
        return plain_text(self)

    __str__ = __repr__

    def _repr_html_(self) -> str:
        return "".join(
            f"<p>{escape_html(one)}</p>" if isinstance(one, str) else one.html()
            for one in self.tables()
        )


def plain_text(shown: RenderableType) -> str:
    """What a terminal of 100 columns would show, without colours."""
    console = Console(file=io.StringIO(), width=_PLAIN, color_system=None)
    with console.capture() as capture:
        console.print(shown)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def format_score(value: float) -> str:
    """A score as the tables print it."""
    return f"{value:.3f}"


def _terminal(cell: Cell) -> Text:
    text = Text(visible(cell.text), style="bold" if cell.best else "dim" if cell.quiet else "")
    if cell.letters:
        text.append(f"^{cell.letters}")
    if cell.interval:
        text.append(f"\n{cell.interval}", style="dim")
    return text


def _markdown(cell: Cell) -> str:
    text = escape_markdown(cell.text)
    text = f"**{text}**" if cell.best else text
    if cell.letters:
        text += f"<sup>{cell.letters}</sup>"
    return f"{text} ({cell.interval})" if cell.interval else text


def _latex(cell: Cell) -> str:
    text = _escape_latex(cell.text)
    text = rf"\textbf{{{text}}}" if cell.best else text
    return f"{text}$^{{{cell.letters}}}$" if cell.letters else text


def _latex_row(cells: Iterable[str]) -> str:
    line = " & ".join(cells) + r" \\"
    return f"{{}}{line}" if line.startswith(("[", "*")) else line  # no argument of the \\ before


def escape_markdown(text: str) -> str:
    """The text on one line, with a backslash before what Markdown would take for markup."""
    # An underscore inside a word is no emphasis: R_cap@100 stays readable.
    line = visible(text.replace("\n", " "))
    return re.sub(r"[\\`*\[\]<|]|(?<![^\W_])_|_(?![^\W_])", r"\\\g<0>", line)


def escape_html(text: str) -> str:
    """The text as HTML shows it: no markup, no control character, a new line as a line break."""
    return "<br>".join(escape(visible(line)) for line in text.split("\n"))


def _escape_latex(text: str) -> str:
    return visible(text.replace("\n", " ")).translate(_LATEX)


def page(title: str, parts: Iterable[str]) -> str:
    """The parts, which are HTML already, as a page without scripts and external files."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(visible(title))}</title>"
        f"<style>{look()}{_stylesheet('reports.css')}</style></head>\n<body>\n"
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


def look() -> str:
    """The stylesheet of reports and of the search page: colours, type, tables, bars, print."""
    return _stylesheet("look.css")


@cache
def _stylesheet(name: str) -> str:
    return files("isthmus.evaluation").joinpath(name).read_text(encoding="utf-8")
