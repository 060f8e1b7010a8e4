"""`isthmus delete`."""

from __future__ import annotations

from typing import Annotated

import typer


def add_to(app: typer.Typer) -> None:
    """Registers the verb."""
    app.command()(delete)


def delete(
    index: Annotated[str, typer.Argument(help="An index folder, dense or inverted.")],
    documents: Annotated[list[str] | None, typer.Argument(help="Ids of documents.")] = None,
    ids: Annotated[str | None, typer.Option(help="A file of ids, one in each line.")] = None,
) -> None:
    """Delete documents from an index.

    Examples: isthmus delete idx d17 d18; isthmus delete idx --ids withdrawn.txt
    """
    from isthmus.progress import result
    from isthmus.search import delete

    update = delete(index, documents or (), ids)
    result(f"deleted {update.deleted:,} documents; the index has {update.documents:,}")
