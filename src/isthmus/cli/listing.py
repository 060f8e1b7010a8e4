"""`isthmus list`."""

from __future__ import annotations

from typing import Annotated

import typer


def add_to(app: typer.Typer) -> None:
    """Registers the verb."""
    app.command(name="list")(listing)


def listing(
    what: Annotated[
        str, typer.Argument(help="recipes, parts, or the name of one of them.")
    ] = "recipes",
) -> None:
    """List the shipped recipes, or the parts that recipes are made of; or show one in full.

    Example: isthmus list parts; isthmus list cdmae; isthmus list neighbours
    """
    from rich.console import Console

    from isthmus.inspection.listing import listing

    Console().print(listing(what))
