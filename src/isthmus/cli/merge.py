"""`isthmus merge`."""

from __future__ import annotations

from typing import Annotated

import typer


def add_to(app: typer.Typer) -> None:
    """Registers the verb."""
    app.command()(merge)


def merge(
    index: Annotated[str, typer.Argument(help="An index folder that was added to.")],
) -> None:
    """Make an index one whole again: no segments, no traces of deleted documents.

    `add` and `delete` merge by themselves as far as searching needs it; this goes to the end.

    Example: isthmus merge idx
    """
    from isthmus.progress import result
    from isthmus.search import merge

    result(f"the index is one whole of {merge(index).documents:,} documents")
