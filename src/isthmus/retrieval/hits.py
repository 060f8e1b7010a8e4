"""What a search found, and how a terminal, a notebook and Python's prompt show it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.table import Table as TerminalTable
from rich.text import Text

from isthmus.errors import IsthmusError, visible
from isthmus.records import Passage
from isthmus.retrieval.snippets import Snippet

_NOTHING = "no document holds a term of the query"


@dataclass(frozen=True, slots=True)
class Hit:
    """One document found: score, id, title, its text, and the part of that nearest to the query.

    `metadata` is whatever else it has; `highlights` are from where to where, in the snippet, words
    answer the query.

    Of a document that was indexed in passages, the text is that of the best one, and `passage` says
    which that is.
    """

    score: float
    id: str
    title: str
    snippet: str
    passage: Passage | None = None
    text: str = ""
    metadata: dict[str, Any] = field(default_factory=dict, hash=False)
    highlights: tuple[tuple[int, int], ...] = ()

    @property
    def name(self) -> str:
        """Title and id, one below the other; once where they are the same."""
        return "\n".join(dict.fromkeys(filter(None, (self.title, self.id))))

    def to_dict(self) -> dict[str, Any]:
        """The hit in plain values, with the place of its passage."""
        found = asdict(self)
        if (one := self.passage) is not None:
            place = {"number": one.number, "heading": one.heading}
            found["passage"] = place | {"start": one.start, "end": one.end}
        if not self.metadata:
            del found["metadata"]
        return found


class Hits(list[Hit]):
    """The hits of one query, best first: a list that shows itself as a table.

    `notice` says why there are none, and is empty where there are some; `error` is what was wrong
    with the query, where several are answered.
    """

    def __init__(
        self,
        query: str,
        found: Iterable[Hit] = (),
        notice: str = _NOTHING,
        error: IsthmusError | None = None,
    ) -> None:
        super().__init__(found)
        self.query = query
        self.error = error
        self.notice = "" if self or error else notice

    def to_dict(self) -> dict[str, Any]:
        """The query and its hits in plain values."""
        readable = self.query.encode(errors="backslashreplace").decode()  # of bytes not UTF-8
        found = [{"rank": rank, **hit.to_dict()} for rank, hit in enumerate(self, start=1)]
        about = {"notice": self.notice, "error": self.error and self.error.to_dict()}
        return {"query": readable, "hits": found, **{k: v for k, v in about.items() if v}}

    def __rich__(self) -> TerminalTable | Text:
        if not self:
            return Text(visible(f"“{self.query}”: no results: {self.notice}"))
        # As Text: brackets in documents are not markup.
        table = TerminalTable(
            box=None, show_header=False, pad_edge=False, padding=(0, 1, 0, 0), expand=True
        )
        scores = [f"{hit.score:.3f}" for hit in self]
        for column, widest in (("rank", str(len(self))), ("score", max(scores, key=len))):
            table.add_column(column, justify="right", no_wrap=True, min_width=len(widest))
        table.add_column("document", no_wrap=True, overflow="ellipsis", ratio=1)
        for rank, hit in enumerate(self, start=1):
            about = Text(visible(" · ".join(dict.fromkeys(filter(None, (hit.title, hit.id))))))
            about.stylize("bold")
            if (one := hit.passage) is not None and (one.heading or one.number > 1):
                about.append(visible(f" § {one.heading or one.number}"), "dim")
            about.append("\n")
            for part, answers in Snippet(hit.snippet, hit.highlights).parts:
                style = "bold" if answers else "not bold"
                about.append(visible(part).replace("\n", " "), style)
            table.add_row(str(rank), scores[rank - 1], about)
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
