"""`isthmus list`."""

from __future__ import annotations

from typing import Annotated

import typer


def add_to(app: typer.Typer) -> None:
    """Registers the verb."""
    app.command(name="list")(listing)


def listing(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[WHAT]", help="recipes, parts, or the name of one of them."),
    ] = None,
) -> None:
    """List the shipped recipes, or the parts that recipes are made of; or show one in full.

    Example: isthmus list parts; isthmus list neighbours; isthmus list cdmae > mine.yaml
    """
    from rich.console import Console

    from isthmus.inspection.listing import listing

    Console().print(listing(*(words or ())), soft_wrap=True)
