"""The options that several verbs share, said once."""

from __future__ import annotations

from typing import Annotated

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
Output = Annotated[str, typer.Option(help="The folder to write. The same job resumes in it.")]


def overrides_option(verb: str, example: str) -> OptionInfo:
    """`--set`, with an example that the verb takes."""
    option: OptionInfo = typer.Option(
        "--set",
        metavar="PATH=VALUE",
        help=f"Overrides one value, e.g. --set {example}. Repeatable. All there are: isthmus list "
        f"settings {verb}",
    )
    return option
