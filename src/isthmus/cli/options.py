"""The options that several verbs share, said once."""

from __future__ import annotations

from typing import Annotated

import typer

Recipe = Annotated[
    str, typer.Option(help="A shipped recipe (`isthmus list recipes`) or a path to a YAML file.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="PATH=VALUE",
        help="Overrides one value, e.g. --set training.learning_rate=1e-4. Repeatable.",
    ),
]
Cluster = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        help="Share the work among machines: HOST:PORT of a Ray cluster, auto, or local.",
    ),
]
Output = Annotated[str, typer.Option(help="The folder to write. The same job resumes in it.")]
