"""`isthmus masking`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import isthmus
from isthmus.cli.options import Recipe, settings_option


def masking(
    corpus: Annotated[
        str, typer.Option(help="What would be learnt: a .jsonl file, a folder, beir:PATH, …")
    ],
    model: Annotated[str, typer.Option(help="Whose tokenizer is used: a folder or hub name.")],
    recipe: Recipe = "cdmae",
    documents: Annotated[int, typer.Option(min=1, help="How many are sampled.")] = 2000,
    words: Annotated[int, typer.Option(min=1, help="How many words to print.")] = 20,
    stop_words: Annotated[
        Path | None, typer.Option(help="A file of stop words, one a line; English if none.")
    ] = None,
    output: Annotated[Path | None, typer.Option(help="A .json file for all numbers.")] = None,
    settings: Annotated[list[str] | None, settings_option("masking", "corruption.rate=0.5")] = None,
) -> None:
    """Show what a recipe's masking hides, and which words of a corpus are important.

    Example: isthmus masking --corpus docs.jsonl --model bert-base-uncased --recipe cdmae
    """
    from rich.console import Console

    report = isthmus.masking(
        corpus,
        model,
        recipe,
        documents=documents,
        words=words,
        stop_words=stop_words,
        output=output,
        settings=settings,
    )
    Console().print(report.table())
