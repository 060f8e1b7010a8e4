"""`isthmus list`."""

from __future__ import annotations

from typing import Annotated

import typer

import isthmus


def listing(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[WHAT]...",
            help="recipes, protocols, parts, the name of one of them, the path of a recipe of your "
            "own, or settings VERB [PATH].",
        ),
    ] = None,
) -> None:
    """List shipped recipes, protocols and their parts, or what --set takes; or show one.

    Example: isthmus list parts; isthmus list neighbours; isthmus list cdmae > mine.yaml;
    isthmus list settings pretrain; isthmus list settings pretrain training
    """
    from rich.console import Console

    Console().print(isthmus.listing(*(words or ())), soft_wrap=True)
