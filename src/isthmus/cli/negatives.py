"""`isthmus negatives`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import isthmus
from isthmus.cli.options import Recipe, settings_option


def negatives(
    run: Annotated[
        str | None, typer.Argument(help="A fine-tuning, or a stage of one. Needs no other.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Whose tokenizer is used: a folder or hub name.")
    ] = None,
    collection: Annotated[
        str | None, typer.Option(help="A judged collection with a training split.")
    ] = None,
    recipe: Recipe = "dense",
    output: Annotated[Path | None, typer.Option(help="An .html file, to read samples.")] = None,
    settings: Annotated[
        list[str] | None, settings_option("negatives", "negatives.num_negatives=7")
    ] = None,
) -> None:
    """Show which negatives a fine-tuning draws: false ones, duplicates, ranks.

    Examples: isthmus negatives --collection beir:scifact --model bert-base-uncased
    --output negatives.html; isthmus negatives runs/dense
    """
    from rich.console import Console

    from isthmus.finetuning.mining.audit import audit_table

    found = isthmus.negatives(
        run, model=model, collection=collection, recipe=recipe, output=output, settings=settings
    )
    Console().print(audit_table(found))
