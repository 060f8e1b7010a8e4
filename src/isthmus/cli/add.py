"""`isthmus add`."""

from __future__ import annotations

from typing import Annotated

import typer

import isthmus
from isthmus.cli.options import Model, settings_option


def add(
    index: Annotated[
        str, typer.Argument(help="An index folder of any kind, also of several indexes.")
    ],
    corpus: Annotated[str, typer.Option(help="What to add: anything `index` reads.")],
    model: Model = None,
    settings: Annotated[list[str] | None, settings_option("add", "problems=skip")] = None,
) -> None:
    """Add documents to an index; those whose ids are there already are replaced.

    All of them can be found once the command has printed its result, none before.

    Example: isthmus add idx --corpus more.jsonl
    """
    from isthmus.progress import result

    update = isthmus.add(index, corpus, model=model, settings=settings)
    result(
        f"added {update.added:,} documents, replaced {update.replaced:,}; the index has "
        f'{update.documents:,}\nnext: isthmus search {index} "a query"'
    )
