"""`isthmus inspect`."""

from __future__ import annotations

from typing import Annotated

import typer

import isthmus
from isthmus.cli.options import Json, settings_option, show

Beside = Annotated[
    list[str] | None,
    typer.Option(metavar="MODEL", help="Another model, side by side. Repeatable."),
]
Recipe = Annotated[
    str | None,
    typer.Option(help="Show instead how often this pre-training recipe masks each word."),
]
Corpus = Annotated[
    str | None,
    typer.Option(help="Documents whose n-grams weigh words, for recipes that mask by importance."),
]
Coverage = Annotated[
    str | None,
    typer.Option(
        metavar="CORPUS",
        help="Measure how many of a text's tokens its vector names, on a sample of this.",
    ),
]


def inspect(
    model: Annotated[
        str, typer.Argument(help="A folder, a hub name, a run or one of its checkpoints.")
    ],
    texts: Annotated[
        list[str] | None, typer.Argument(metavar="TEXT…", help="Whose vectors to look into.")
    ] = None,
    beside: Beside = None,
    coverage: Coverage = None,
    documents: Annotated[
        int | None,
        typer.Option(help="On how many coverage is measured: 300, held out, if none is given."),
    ] = None,
    top: Annotated[int | None, typer.Option(help="Tokens to show of each vector: 20.")] = None,
    queries: Annotated[
        bool, typer.Option("--queries", help="Read the texts as queries, not as documents.")
    ] = False,
    recipe: Recipe = None,
    corpus: Corpus = None,
    output: Annotated[
        str | None, typer.Option(help="A folder for JSON, tables and the plot of the coverage.")
    ] = None,
    as_json: Json = False,
    settings: Annotated[list[str] | None, settings_option("inspect", "pooling=mean")] = None,
) -> None:
    """Show what vectors hold: their tokens, and how many of a text's own are among them.

    A dense vector is projected to the vocabulary by the model's masked-LM head: ✓ is a token of the
    text, ✗ another. Of a sparse vector: terms of the text, expansions (+), and what was dropped.
    Why a document matched: isthmus explain.

    Examples: isthmus inspect runs/bow "does vitamin D protect against infection" --beside runs/mlm
    --beside bert-base-uncased; isthmus inspect runs/splade "a query" --queries; isthmus inspect
    runs/bow --beside runs/retromae --coverage docs.jsonl --output runs/coverage;
    isthmus inspect bert-base-uncased "Snow fell on the bridge." --recipe cdmae --corpus docs.jsonl
    """
    found = isthmus.inspect(
        model,
        texts or (),
        beside=beside or (),
        coverage=coverage,
        documents=documents,
        top=top,
        queries=queries,
        recipe=recipe,
        corpus=corpus,
        output=output,
        settings=settings,
    )
    show(found, as_json)
