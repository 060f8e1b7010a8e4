"""Options that several verbs share, and what --json does with a result."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.models import OptionInfo

Recipe = Annotated[
    str, typer.Option(help="A shipped recipe (`isthmus list recipes`) or a path to a YAML file.")
]
Cluster = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        help="Share the work among machines: HOST:PORT of a Ray cluster, auto, or local.",
    ),
]
Split = Annotated[
    str | None, typer.Option(help="Of the collection: test, or the only one that there is.")
]
Splits = Annotated[
    str | None,
    typer.Option(
        metavar="SPLIT[,SPLIT…]",
        help="Of the collection: test, or the only one that there is. Several have a report each.",
    ),
]
Reranker = Annotated[
    str | None, typer.Option(help="A cross-encoder that reads the best once more.")
]
Model = Annotated[
    str | None, typer.Option(help="The encoder, if it moved or is not on this disk yet.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON in place of a table.")]
Output = Annotated[str, typer.Option(help="The folder to write. The same job resumes in it.")]
OutputUnlessResumed = Annotated[
    str | None, typer.Option(help="The folder to write. The same job resumes in it.")
]
Resume = Annotated[
    str | None,
    typer.Option(
        metavar="FOLDER", help="Go on with the run in this folder, as it began. Needs no other."
    ),
]


def refuse_new_recipe(context: typer.Context, resume: str | None) -> None:
    """Refuses a recipe beside a run that has its own."""
    from isthmus.errors import SettingsError

    chosen = context.get_parameter_source("recipe")
    if resume is not None and chosen is not None and chosen.name == "COMMANDLINE":
        raise SettingsError(
            f"--recipe cannot be given with --resume {resume}: the run has its recipe",
            "leave out --recipe, or train again in another --output without --resume",
        )


def show(found: Any, as_json: bool) -> None:
    """Prints what was found: as the tables that it shows itself as, or as JSON."""
    from rich.console import Console

    if as_json:
        typer.echo(found.to_json())
    else:
        Console().print(found)


def settings_option(verb: str, example: str) -> OptionInfo:
    """`--set`, with an example that the verb takes."""
    option: OptionInfo = typer.Option(
        "--set",
        metavar="PATH=VALUE",
        help=f"Overrides one value, e.g. --set {example}. Repeatable. All there are: isthmus list "
        f"settings {verb}",
    )
    return option
