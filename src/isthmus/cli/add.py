"""`isthmus add`."""

from __future__ import annotations

from typing import Annotated

import typer

from isthmus.cli.options import overrides_option


def add_to(app: typer.Typer) -> None:
    """Registers the verb."""
    app.command()(add)


def add(
    index: Annotated[str, typer.Argument(help="An index folder, dense or inverted.")],
    corpus: Annotated[str, typer.Option(help="What to add: anything `index` reads.")],
    model: Annotated[
        str | None, typer.Option(help="The encoder, if it moved, or if it was not used here yet.")
    ] = None,
    overrides: Annotated[list[str] | None, overrides_option("add", "problems=skip")] = None,
) -> None:
    """Add documents to an index; those whose ids are there already are replaced.

    All of them can be found once the command has printed its result, none before.

    Example: isthmus add idx --corpus more.jsonl
    """
    from isthmus.config import resolve
    from isthmus.progress import result
    from isthmus.retrieval import AddSettings, add

    values = resolve("add", None, {"model": model}, overrides or ())
    update = add(index, corpus, AddSettings.parse(values, "isthmus add"))
    result(
        f"added {update.added:,} documents, replaced {update.replaced:,}; the index has "
        f'{update.documents:,}\nnext: isthmus search {index} "a query"'
    )
