"""`isthmus finetune`."""

from __future__ import annotations

from typing import Annotated

import typer

from isthmus.cli.options import Output, Overrides, Recipe


def add_to(app: typer.Typer) -> None:
    """Registers the verb."""
    app.command()(finetune)


def finetune(
    model: Annotated[
        str,
        typer.Option(help="Where to start: a pretrain run, a folder, a hub name, package:NAME."),
    ],
    collection: Annotated[
        str, typer.Option(help="A judged collection with a training split: a BEIR folder, irds:ID.")
    ],
    output: Output,
    recipe: Recipe = "dense",
    overrides: Overrides = None,
) -> None:
    """Turn an encoder into a retriever, with labelled pairs and mined negatives.

    Example: isthmus finetune --recipe dense --model runs/bow --collection beir:scifact
    --output runs/dense
    """
    from isthmus.finetune import finetune
    from isthmus.progress import result

    final = finetune(model, collection, output, recipe, overrides or ())
    result(f"retriever: {final}\nnext: isthmus index --model {output} --corpus … --output …")
