"""The command line: one file per verb, no logic; nothing heavy is imported before a verb runs."""

from __future__ import annotations

import os
import sys

import typer

from isthmus.cli import (
    add,
    benchmark,
    delete,
    doctor,
    evaluate,
    export,
    finetune,
    index,
    listing,
    masking,
    merge,
    negatives,
    parity,
    pretrain,
    quickstart,
    rerun,
    search,
    sparsify,
    tune,
)

app = typer.Typer(
    name="isthmus",
    help="Turns a pile of documents into a retriever that knows them.\n\n"
    "The usual way: pretrain (learn the corpus, no labels) → finetune (learn from labelled pairs) "
    "→ index → search → evaluate. --set PATH=VALUE overrides any setting (`isthmus list settings "
    "VERB`). Long work can be interrupted and resumed, and leaves beside its output what made it "
    "(isthmus.json). `isthmus list recipes` shows where to start.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for verb in (
    pretrain,
    finetune,
    index,
    add,
    delete,
    merge,
    search,
    tune,
    sparsify,
    evaluate,
    export,
    parity,
    masking,
    negatives,
    rerun,
    benchmark,
    listing,
    doctor,
    quickstart,
):
    verb.add_to(app)


_INTERRUPTED = 130  # typer's exit code after Ctrl-C


def main() -> None:
    """Runs the command line; what the user got wrong ends in a message, never in a traceback."""
    # Threads that wait for each other by spinning make training on CPU much slower as soon as
    # another program wants a core (benchmarks/cpu_waiting.py). Read when torch loads.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    try:
        _refuse_other_encodings(sys.argv)
        app()
    except SystemExit as end:
        if end.code == _INTERRUPTED:
            sys.stderr.write("\ninterrupted: the same command again goes on where it stopped\n")
        raise
    except Exception as error:
        from isthmus.errors import InputError, IsthmusError, visible

        if isinstance(error, OSError) and error.filename is not None:
            # What no reader expected of a file (no permission, a name too long, a device).
            error = InputError(
                f"{error.strerror or type(error).__name__}: {error.filename!r}",
                where=str(error.filename),
                allowed="files and folders that can be read and written",
                remedy="check the path and its permissions",
            )
        if not isinstance(error, IsthmusError):
            raise
        sys.stderr.write(visible(f"error: {error}\n"))
        sys.exit(2)


def _refuse_other_encodings(arguments: list[str]) -> None:
    from isthmus.errors import InputError, lone_surrogate

    for argument in arguments:
        if lone_surrogate(argument):
            raise InputError(
                f"the argument {argument!r} is not UTF-8",
                where="command line",
                allowed="UTF-8: names of files end up in JSON, and queries in tokenizers",
                remedy="rename the file or folder, or set the terminal to UTF-8",
            )
