"""`isthmus rerun`."""

from __future__ import annotations

from typing import Annotated

import typer

import isthmus


def rerun(
    folder: Annotated[str, typer.Argument(help="The output folder of an earlier command.")],
    output: Annotated[str, typer.Option(help="Where the repetition goes.")],
) -> None:
    """Repeat what made a folder, from the settings and seeds that lie beside it.

    Says what has changed since: library versions, the commit, the data.

    Example: isthmus rerun runs/dense --output runs/dense-again
    """
    from isthmus.progress import result

    result(f"repeated in {isthmus.rerun(folder, output)}")
