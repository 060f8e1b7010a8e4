"""`isthmus pretrain`."""

from __future__ import annotations

from typing import Annotated

import typer

import isthmus
from isthmus.cli.options import Output, Overwrite, Recipe, settings_option


def pretrain(
    output: Output,
    documents: Annotated[
        str | None,
        typer.Argument(
            help="The documents to train on: a .jsonl file, a folder of texts, beir:PATH, hf:NAME, "
            "irds:ID, …; of an earlier run if RECIPE is one."
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="The model to train: a folder, a hub name, package:NAME, a run, or an untrained "
            "one: scratch:SIZE (tiny, mini, small, base)."
        ),
    ] = None,
    recipe: Recipe = "bow",
    overwrite: Overwrite = False,
    settings: Annotated[
        list[str] | None, settings_option("pretrain", "training.learning_rate=1e-4")
    ] = None,
) -> None:
    """Pre-train an encoder on documents, without labels.

    The same command again resumes; --recipe RUN --output OTHER repeats a run.

    Example: isthmus pretrain docs.jsonl --recipe bow --model bert-base-uncased --output runs/bow
    """
    from isthmus.pretraining.handover import next_step
    from isthmus.progress import result

    final = isthmus.pretrain(
        documents, model, output, recipe=recipe, overwrite=overwrite, settings=settings
    )
    result(next_step(final.parent))
