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

    With --quiet, only what is wrong is printed.

    Example: isthmus doctor beir:scifact bert-base-uncased;
    isthmus doctor indexes/dense
    """
    from rich.console import Console

    from isthmus.inspection.doctor import findings_table
    from isthmus.progress import console

    findings = isthmus.doctor(things or ())
    wrong = [one for one in findings if not one.ok]
    if shown := wrong if console.quiet else findings:
        Console().print(findings_table(shown))
    if wrong:
        raise typer.Exit(1)
