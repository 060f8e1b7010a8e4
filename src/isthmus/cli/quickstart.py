"""`isthmus quickstart`."""

from __future__ import annotations

from typing import Annotated

import typer

from isthmus.cli.options import Output, Recipe, overrides_option


def add_to(app: typer.Typer) -> None:
    """Registers the verb."""
    app.command()(quickstart)


def quickstart(
    output: Output = "runs/quickstart",
    recipe: Recipe = "quickstart",
    overrides: Annotated[
        list[str] | None, overrides_option("quickstart", "limit_per_package=100")
    ] = None,
) -> None:
    """Do the main job on the documentation of the Python packages on this machine.

    Pre-trains and fine-tunes an encoder on docstrings, builds indexes, compares five systems in a
    table with confidence intervals and significance marks, and runs one search.

    Example: isthmus quickstart --output runs/quickstart
    """
    from isthmus.workflows.quickstart import quickstart

    quickstart(output, recipe, overrides or ())
