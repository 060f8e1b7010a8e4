"""`isthmus delete`."""

from __future__ import annotations

from typing import Annotated

import typer

import isthmus
from isthmus.cli.options import settings_option


def delete(
    index: Annotated[
        str, typer.Argument(help="An index folder of any kind, also of several indexes.")
    ],
    documents: Annotated[list[str] | None, typer.Argument(help="Ids of documents.")] = None,
    ids: Annotated[str | None, typer.Option(help="A file of ids, one in each line.")] = None,
    settings: Annotated[list[str] | None, settings_option("delete", "problems=skip")] = None,
) -> None:
    """Delete documents from an index: all that are named, or none where one is not in it.

    Examples: isthmus delete idx d17 d18; isthmus delete idx --ids withdrawn.txt --set problems=skip
    """
    from isthmus.progress import result

    update = isthmus.delete(index, documents or (), ids, settings=settings)
    result(f"deleted {update.deleted:,} documents; the index has {update.documents:,}")
