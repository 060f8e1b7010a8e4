"""`isthmus merge`."""

from __future__ import annotations

from typing import Annotated

import typer

import isthmus
from isthmus.cli.options import Model, settings_option


def merge(
    index: Annotated[str, typer.Argument(help="An index folder that was added to.")],
    model: Model = None,
    settings: Annotated[list[str] | None, settings_option("merge", "hnsw=true")] = None,
) -> None:
    """Make an index one whole again: no segments, no traces of deleted documents.

    `add` and `delete` merge by themselves as far as searching needs it; this goes to the end, and
    builds a graph beside a dense one where that is wanted.

    Examples: isthmus merge idx; isthmus merge idx --set hnsw=true
    """
    from isthmus.progress import result

    update = isthmus.merge(index, model=model, settings=settings)
    result(f"the index is one whole of {update.documents:,} documents")
