"""What every command has: --quiet and --verbose, and help that reads well at any width."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

_Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="Print results alone: no progress, no notices.")
]
_Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="Say every step at once; show where errors arose.")
]
_SETTLED = {"quiet": _Quiet, "verbose": _Verbose}


class Command(TyperCommand):
    """A command whose help names no type for what is only switched on."""

    def get_params(self, ctx: Any) -> Any:
        """The parameters, as help and parsing take them."""
        return without_types_of_flags(super().get_params(ctx))


class Group(TyperGroup):
    """A group of commands whose help does the same."""

    def get_params(self, ctx: Any) -> Any:
        """The parameters, as help and parsing take them."""
        return without_types_of_flags(super().get_params(ctx))


def without_types_of_flags(parameters: list[Any]) -> list[Any]:
    """The parameters; those that take no value show no `<bool>`."""
    for one in parameters:
        if getattr(one, "is_flag", False):
            one.display_type_rich = _no_type
    return parameters


def _no_type(ctx: Any) -> None:
    """No text in the column of types."""


def command(verb: Callable[..., None]) -> Callable[..., None]:
    """The verb with `--quiet` and `--verbose`, and help that breaks where the screen does."""
    signature = inspect.signature(verb, eval_str=True)

    @wraps(verb)
    def run(*given: Any, quiet: bool = False, verbose: bool = False, **named: Any) -> None:
        if not (quiet or verbose):
            return verb(*given, **named)
        from isthmus import progress

        progress.set_voice(quiet, verbose)
        try:
            verb(*given, **named)
        finally:
            progress.console.quiet = False

    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=option)
        for name, option in _SETTLED.items()
    ]
    run.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[*signature.parameters.values(), *added]
    )
    run.__doc__ = _flowing(inspect.cleandoc(verb.__doc__ or ""))
    return run


def _flowing(text: str) -> str:
    """A docstring without the line breaks inside its sentences; every example on its own line."""
    paragraphs = [" ".join(paragraph.split()) for paragraph in text.split("\n\n")]
    return "\n\n".join(
        re.sub(r"(?:^Examples?:|;) (?=isthmus )", lambda at: f"{at[0].strip()}\n  ", paragraph)
        for paragraph in paragraphs
    )
