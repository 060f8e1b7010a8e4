"""`isthmus finetune`."""

from __future__ import annotations

from typing import Annotated

import typer

import isthmus
from isthmus.cli.options import Output, Overwrite, Recipe, settings_option


def finetune(
    output: Output,
    collection: Annotated[
        str | None,
        typer.Argument(
            help="The collection with a training split: a BEIR folder, irds:ID; of an earlier run "
            "if RECIPE is one."
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="The model to train: a run, a folder, a hub name, package:NAME."),
    ] = None,
    recipe: Recipe = "dense",
    overwrite: Overwrite = False,
    settings: Annotated[
        list[str] | None, settings_option("finetune", "training.learning_rate=1e-5")
    ] = None,
) -> None:
    """Train a retriever or a re-ranker on labelled queries and mined negatives.

    The same command again resumes; --recipe RUN --output OTHER repeats a run. A recipe of several
    stages (three-stage, …) keeps each in its folder in OUTPUT; with something changed and
    --overwrite, only the stages that the change concerns are done again.

    Example: isthmus finetune beir:scifact --recipe three-stage --model runs/bow --output
    runs/dense --set stages.mined.negatives.num_negatives=7
    """
    from isthmus.finetuning.summary import next_step, summary
    from isthmus.progress import result

    final = isthmus.finetune(
        collection, model, output, recipe=recipe, overwrite=overwrite, settings=settings
    )
    if table := summary(final.parent):
        result(table.terminal())
    result(next_step(final.parent))
