"""`isthmus pretrain`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import isthmus
from isthmus.cli.options import (
    Cluster,
    OutputUnlessResumed,
    Recipe,
    Resume,
    refuse_new_recipe,
    settings_option,
)


def pretrain(
    context: typer.Context,
    corpus: Annotated[
        str | None,
        typer.Option(
            help="What to learn: a .jsonl file, a folder of texts, beir:PATH, hf:NAME, irds:ID, …"
        ),
    ] = None,
    output: OutputUnlessResumed = None,
    model: Annotated[
        str | None, typer.Option(help="Where to start: a folder, a hub name, package:NAME, a run.")
    ] = None,
    init: Annotated[
        str | None, typer.Option(help="Or from nothing, by size: tiny, mini, small, base.")
    ] = None,
    recipe: Recipe = "bow",
    cluster: Cluster = None,
    settings: Annotated[
        list[str] | None, settings_option("pretrain", "training.learning_rate=1e-4")
    ] = None,
    resume: Resume = None,
) -> None:
    """Teach an encoder a corpus, without labels.

    Example: isthmus pretrain --recipe bow --corpus docs.jsonl --model bert-base-uncased
    --output runs/bow; isthmus pretrain --resume runs/bow
    """
    from isthmus.progress import result

    refuse_new_recipe(context, resume)
    final = isthmus.pretrain(
        corpus, output, model, init, recipe, cluster=cluster, settings=settings, resume=resume
    )
    result(f"encoder: {final}\nnext: {_next(final.parent)}")


def _next(run: Path) -> str:
    from isthmus.config.output import read_snapshot
    from isthmus.pretraining.handover import next_recipe
    from isthmus.pretraining.settings import PretrainSettings

    values = {**read_snapshot(run)["identity"]["settings"], "output": str(run)}
    recipe = next_recipe(PretrainSettings.parse(values, where=str(run)))
    chosen = f"--recipe {recipe} " if recipe else ""
    return f"isthmus finetune {chosen}--model {run} --collection …"
