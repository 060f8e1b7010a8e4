"""`isthmus finetune`."""

from __future__ import annotations

from typing import Annotated

import typer

import isthmus
from isthmus.cli.options import (
    OutputUnlessResumed,
    Recipe,
    Resume,
    refuse_new_recipe,
    settings_option,
)


def finetune(
    context: typer.Context,
    model: Annotated[
        str | None,
        typer.Option(help="Where to start: a pretrain run, a folder, a hub name, package:NAME."),
    ] = None,
    collection: Annotated[
        str | None,
        typer.Option(help="A judged collection with a training split: a BEIR folder, irds:ID."),
    ] = None,
    output: OutputUnlessResumed = None,
    recipe: Recipe = "dense",
    settings: Annotated[
        list[str] | None, settings_option("finetune", "training.learning_rate=1e-5")
    ] = None,
    resume: Resume = None,
) -> None:
    """Turn an encoder into a retriever, with labelled pairs and mined negatives.

    A recipe of several stages (three-stage, …) keeps each in a folder of its own below --output;
    run again with something changed, it repeats only the stages that the change concerns.

    Example: isthmus finetune --recipe three-stage --model runs/bow --collection beir:scifact
    --output runs/dense --set stages.mined.negatives.num_negatives=7; isthmus finetune --resume
    runs/dense
    """
    from isthmus.finetuning.summary import next_step, summary
    from isthmus.progress import result

    refuse_new_recipe(context, resume)
    final = isthmus.finetune(model, collection, output, recipe, settings=settings, resume=resume)
    if table := summary(final.parent):
        result(table.terminal())
    result(next_step(final.parent))
