"""`isthmus doctor`."""

from __future__ import annotations

from typing import Annotated

import typer

import isthmus


def doctor(
    things: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[THING]...",
            help="Documents, collections, models and indexes, each recognised by what it is. Of a "
            "model and documents together: how much of them it reads.",
        ),
    ] = None,
) -> None:
    """Check this machine, and any documents, models or indexes you name.

    Example: isthmus doctor beir:scifact bert-base-uncased;
    isthmus doctor indexes/dense
    """
    from rich.console import Console

    found = isthmus.doctor(things or ())
    Console().print(found)
    raise typer.Exit(found.exit_code)
