"""`isthmus importance`."""

from __future__ import annotations

from typing import Annotated

import typer

import isthmus
from isthmus.cli.options import Json, Recipe, settings_option, show


def importance(
    text: Annotated[str, typer.Argument(help="Whose words are weighed; of the corpus or not.")],
    corpus: Annotated[
        str, typer.Option(help="Whose n-grams weigh them: a .jsonl file, a folder, beir:PATH, …")
    ],
    model: Annotated[str, typer.Option(help="Whose tokenizer is used: a folder or hub name.")],
    recipe: Recipe = "cdmae",
    draws: Annotated[int, typer.Option(min=1, help="Masks to draw, to count chances.")] = 2000,
    as_json: Json = False,
    settings: Annotated[
        list[str] | None, settings_option("importance", "decoder_corruption.sigma=0.5")
    ] = None,
) -> None:
    """Show how important each word of a text is, and how often a recipe's masking hides it.

    Importance is by PMI with the words around it, counted on the corpus (CDMAE, figure 3).

    Example: isthmus importance "hokey stuff is a crossword puzzle clue" --corpus docs.jsonl
    --model bert-base-uncased
    """
    found = isthmus.importance(text, corpus, model, recipe, draws=draws, settings=settings)
    show(found, as_json)
