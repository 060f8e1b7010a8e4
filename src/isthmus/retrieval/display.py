"""Results as a person reads them."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from isthmus.errors import visible
from isthmus.retrieval.verbs.search import Hit


def hits_table(query: str, found: Sequence[Hit]) -> Table:
    """The hits of a query as a terminal table, best first."""
    # As Text: brackets in documents are not markup.
    table = Table(title=Text(visible(f"“{query}”")), title_justify="left")
    table.caption = None if found else "no results"
    table.add_column("rank", justify="right", no_wrap=True)
    table.add_column("score", justify="right", no_wrap=True)
    table.add_column("document", overflow="fold")
    table.add_column("text")
    for rank, hit in enumerate(found, start=1):
        name = hit.title if hit.title == hit.id else "\n".join(filter(None, (hit.title, hit.id)))
        table.add_row(str(rank), f"{hit.score:.3f}", *map(Text, map(visible, (name, hit.snippet))))
    return table
