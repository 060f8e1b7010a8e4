"""`isthmus negatives`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import isthmus
from isthmus.cli.options import Recipe, settings_option


def negatives(
    source: Annotated[
        str, typer.Argument(help="A fine-tuning, or a stage of one; or a collection.")
    ],
    model: Annotated[
        str | None, typer.Option(help="Model whose tokenizer is used on a collection.")
    ] = None,
    recipe: Recipe = "dense",
    output: Annotated[Path | None, typer.Option(help="An .html file, to read samples.")] = None,
    settings: Annotated[
        list[str] | None, settings_option("negatives", "negatives.num_negatives=7")
    ] = None,
) -> None:
    """Show which negatives a fine-tuning draws: false ones, duplicates, ranks.

    Examples: isthmus negatives beir:scifact --model bert-base-uncased --output negatives.html;
    isthmus negatives runs/dense
    """
    from rich.console import Console

    found = isthmus.negatives(source, model=model, recipe=recipe, output=output, settings=settings)
    Console().print(found)
