"""`isthmus inspect`."""

from __future__ import annotations

from typing import Annotated

import typer

import isthmus
from isthmus.cli.options import Json, settings_option, show


def inspect(
    model: Annotated[
        str, typer.Argument(help="A folder, a hub name, a run or one of its checkpoints.")
    ],
    texts: Annotated[
        list[str] | None, typer.Argument(metavar="TEXT…", help="Texts to encode, as documents.")
    ] = None,
    compare: Annotated[
        list[str] | None, typer.Option(metavar="MODEL", help="Another model. Repeatable.")
    ] = None,
    coverage: Annotated[
        str | None,
        typer.Option(
            metavar="DOCUMENTS",
            help="Documents to measure coverage on; with --recipe, whose n-grams weigh words.",
        ),
    ] = None,
    recipe: Annotated[
        str | None,
        typer.Option(help="Show instead how often this pre-training recipe masks each word."),
    ] = None,
    output: Annotated[
        str | None, typer.Option(help="A folder for report.json and table.md.")
    ] = None,
    as_json: Json = False,
    settings: Annotated[list[str] | None, settings_option("inspect", "pooling=mean")] = None,
) -> None:
    """Show what vectors hold: their tokens, and how many of a text's own are among them.

    A dense vector is projected to the vocabulary by the model's masked-LM head: ✓ is a token of the
    text, ✗ another. Of a sparse vector: terms of the text, expansions (+), and what was dropped.
    Why a document matched: isthmus explain.

    Examples: isthmus inspect runs/bow "does vitamin D protect against infection" --compare runs/mlm
    --compare bert-base-uncased; isthmus inspect runs/bow --compare runs/retromae
    --coverage docs.jsonl; isthmus inspect bert-base-uncased "Snow fell on the bridge."
    --recipe cdmae --coverage docs.jsonl
    """
    found = isthmus.inspect(
        model,
        texts or (),
        compare=compare or (),
        coverage=coverage,
        recipe=recipe,
        output=output,
        settings=settings,
    )
    show(found, as_json)
