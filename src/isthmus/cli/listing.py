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
    what, *names = words or ["recipes"]
    if what != "settings":
        name = next(iter(names), None) if what in ("recipes", "protocols", "parts") else what
        typer.echo(isthmus.recipes(name, parts=what == "parts"))
        return
    from isthmus.inspection.settings import VERBS, settings_of

    length = 2 if " ".join(names[:2]) in VERBS else 1
    for one in settings_of(" ".join(names[:length]), ".".join(names[length:]).strip(".")):
        typer.echo(f"{one.path} = {one.value}\n    {one.values}: {one.meaning}")
