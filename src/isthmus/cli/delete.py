"""`isthmus delete`."""

from __future__ import annotations

from typing import Annotated

import typer

from isthmus.cli.options import overrides_option


def add_to(app: typer.Typer) -> None:
    """Registers the verb."""
    app.command()(delete)


def delete(
    index: Annotated[str, typer.Argument(help="An index folder, dense or inverted.")],
    documents: Annotated[list[str] | None, typer.Argument(help="Ids of documents.")] = None,
    ids: Annotated[str | None, typer.Option(help="A file of ids, one in each line.")] = None,
    overrides: Annotated[list[str] | None, overrides_option("delete", "problems=skip")] = None,
) -> None:
    """Delete documents from an index: all that are named, or none where one is not in it.

    Examples: isthmus delete idx d17 d18; isthmus delete idx --ids withdrawn.txt --set problems=skip
    """
    from isthmus.config import resolve
    from isthmus.progress import result
    from isthmus.retrieval import DeleteSettings, delete

    values = resolve("delete", None, None, overrides or ())
    settings = DeleteSettings.parse(values, "isthmus delete")
    update = delete(index, documents or (), ids, settings)
    result(f"deleted {update.deleted:,} documents; the index has {update.documents:,}")
