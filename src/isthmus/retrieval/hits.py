"""What a search found, and how a terminal, a notebook and Python's prompt show it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rich.table import Table as TerminalTable
from rich.text import Text

from isthmus.errors import visible
from isthmus.records import Passage

_NOTHING = "no document holds a term of the query"


@dataclass(frozen=True, slots=True)
class Hit:
    """One document found: score, id, title, and the part of its text nearest to the query.

    Of a document that was indexed in passages, also the best of these, with its heading and place.
    """

    score: float
    id: str
    title: str
    snippet: str
    passage: Passage | None = None

    @property
    def name(self) -> str:
        """Title, id and the passage's place, one below the other; once where they are the same."""
        return "\n".join(dict.fromkeys(filter(None, (self.title, self.id, self.place))))

    @property
    def place(self) -> str:
        """Heading, number and characters of the passage; empty for a whole document."""
        one = self.passage
        if one is None:
            return ""
        heading = f"§ {one.heading}\n" if one.heading else ""
        return f"{heading}passage {one.number}, characters {one.start:,}–{one.end:,}"


class Hits(list[Hit]):
    """The hits of one query, best first: a list that shows itself as a table.

    `notice` says why there are none; it is empty where there are some.
    """

    def __init__(self, query: str, found: Iterable[Hit] = (), notice: str = _NOTHING) -> None:
        super().__init__(found)
        self.query = query
        self.notice = "" if self else notice

    def __rich__(self) -> TerminalTable | Text:
        if not self:
            return Text(visible(f"“{self.query}”: no results: {self.notice}"))
        # As Text: brackets in documents are not markup.
        table = TerminalTable(title=Text(visible(f"“{self.query}”")), title_justify="left")
        table.add_column("rank", justify="right", no_wrap=True)
        table.add_column("score", justify="right", no_wrap=True)
        table.add_column("document", overflow="fold")
        table.add_column("text", overflow="fold")  # Chinese has no spaces to wrap at
        for rank, hit in enumerate(self, start=1):
            texts = map(Text, map(visible, (hit.name, hit.snippet)))
            table.add_row(str(rank), f"{hit.score:.3f}", *texts)
        return table

    def __repr__(self) -> str:
        from isthmus.evaluation.tables import plain_text  # brings ir_measures: not to start with

        return plain_text(self)

    def _repr_html_(self) -> str:
        from isthmus.evaluation.tables import Cell, Table

        rows = tuple(
            tuple(map(Cell, (str(rank), f"{hit.score:.3f}", hit.name, hit.snippet)))
            for rank, hit in enumerate(self, start=1)
        )
        caption = f"“{self.query}”" + ("" if self else f": no results: {self.notice}")
        columns = ("rank", "score", "document", "text")
        return Table(columns, rows, caption, names=len(columns)).html()
