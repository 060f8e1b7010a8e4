"""Commands that are not made from `isthmus.api` yet."""

from __future__ import annotations

from typing import Annotated, Any

import typer

import isthmus
from isthmus.cli import (
    adapt,
    evaluate,
)
from isthmus.cli.commands import Command, Group, command

app = typer.Typer(
    name="isthmus",
    help="Turns a pile of documents into a retriever that knows them.\n\n"
    "From a finished retriever: adapt (learn the documents, no labels) → search. From a language "
    "model: pretrain (learn the corpus, no labels) → finetune (learn from labelled pairs) → index "
    "→ search → evaluate. --set PATH=VALUE overrides any setting (`isthmus VERB "
    "--show-settings`). Long work can be interrupted and resumed, and leaves beside its output "
    "what made it (isthmus.json). `isthmus recipes` shows where to start.",
    cls=Group,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
NAMES = {  # that are not made from `isthmus.api` yet
    "quickstart", "adapt", "evaluate",
}  # fmt: skip
_PANELS: dict[str, tuple[Any, ...]] = {
    "Learn": (adapt.adapt,),
    "Evaluate": (evaluate.evaluate,),
    "Whole jobs": (adapt.quickstart,),
}  # fmt: skip
for panel, verbs in _PANELS.items():
    for verb in verbs:
        app.command(cls=Command, rich_help_panel=panel)(command(verb))


def _say_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"isthmus {isthmus.__version__}")
        raise typer.Exit


@app.callback()
def _before_a_command(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version and exit.", is_eager=True, callback=_say_version
        ),
    ] = False,
) -> None: ...
