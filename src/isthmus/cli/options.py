"""Options that several verbs share, and what --json does with a result."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.models import OptionInfo

Recipe = Annotated[
    str,
    typer.Option(
        help="A shipped recipe (`isthmus recipes`), a YAML file, or an earlier OUTPUT: as that run."
    ),
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
        help=f"Overrides one value, e.g. --set {example}. Repeatable. All there are: isthmus "
        f"{verb} --show-settings",
    )
    return option
