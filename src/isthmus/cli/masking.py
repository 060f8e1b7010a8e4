"""`isthmus masking`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from isthmus.cli.options import Recipe, overrides_option


def add_to(app: typer.Typer) -> None:
    """Registers the verb."""
    app.command()(masking)


def masking(
    corpus: Annotated[
        str, typer.Option(help="What would be learnt: a .jsonl file, a folder, beir:PATH, …")
    ],
    model: Annotated[str, typer.Option(help="Whose tokenizer is used: a folder or hub name.")],
    recipe: Recipe = "cdmae",
    documents: Annotated[int, typer.Option(min=1, help="How many to look at.")] = 2000,
    words: Annotated[int, typer.Option(min=1, help="How many words to print.")] = 20,
    stop_words: Annotated[
        Path | None, typer.Option(help="A file of stop words, one a line; English if none.")
    ] = None,
    output: Annotated[Path | None, typer.Option(help="A .json file for everything seen.")] = None,
    overrides: Annotated[
        list[str] | None, overrides_option("masking", "corruption.rate=0.5")
    ] = None,
) -> None:
    """Show what a recipe's masking hides, and which words of a corpus are important.

    Example: isthmus masking --corpus docs.jsonl --model bert-base-uncased --recipe cdmae
    """
    from rich.console import Console

    from isthmus.collections import Problems
    from isthmus.collections.files import lines
    from isthmus.config.output import reserved
    from isthmus.indexes.bm25.library import STOPWORDS_EN_PLUS
    from isthmus.inspection.masking import masking

    chosen = STOPWORDS_EN_PLUS
    if stop_words is not None:
        listed = lines(stop_words, Problems("refuse"))
        chosen = [word for _, line in listed for word in line.lower().split()]
    with reserved(output):
        report = masking(corpus, model, recipe, documents, chosen, overrides or ())
        if output is not None:
            report.save(output)
    Console().print(report.table(words))
