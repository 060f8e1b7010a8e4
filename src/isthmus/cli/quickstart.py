"""`isthmus quickstart`."""

from __future__ import annotations

from typing import Annotated

import isthmus
from isthmus.cli.options import Output, Recipe, settings_option


def quickstart(
    output: Output = "runs/quickstart",
    recipe: Recipe = "quickstart",
    settings: Annotated[
        list[str] | None, settings_option("quickstart", "limit_per_package=100")
    ] = None,
) -> None:
    """Do the main job on the documentation of the Python packages on this machine.

    Adapts an encoder to docstrings, first without labels, then with some; compares what each step
    is worth in a table with confidence intervals and significance marks, and runs one search.

    Example: isthmus quickstart --output runs/quickstart
    """
    isthmus.quickstart(output, recipe, settings=settings)
