"""The command line: no logic; nothing heavy is imported before a verb runs."""

from __future__ import annotations

import copy
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Annotated, NoReturn

import typer
from typer.models import CommandInfo

import isthmus
from isthmus.cli import (
    adapt,
    benchmark,
    doctor,
    evaluate,
    explain,
    export,
    finetune,
    index,
    inspect,
    listing,
    negatives,
    pretrain,
    probe,
    search,
    serve,
    sparsify,
    tune,
    update,
)
from isthmus.cli.commands import Command, Group, command

app = typer.Typer(
    name="isthmus",
    help="Turns a pile of documents into a retriever that knows them.\n\n"
    "From a finished retriever: adapt (learn the documents, no labels) → search. From a language "
    "model: pretrain (learn the corpus, no labels) → finetune (learn from labelled pairs) → index "
    "→ search → evaluate. --set PATH=VALUE overrides any setting (`isthmus list settings "
    "VERB`). Long work can be interrupted and resumed, and leaves beside its output what made it "
    "(isthmus.json). `isthmus list recipes` shows where to start.",
    cls=Group,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_PANELS = {
    "Learn": (adapt.adapt, pretrain.pretrain, finetune.finetune),
    "Search": (
        index.index, search.search, serve.serve, update.add, update.delete, update.sync,
        update.merge, tune.tune, sparsify.sparsify, export.encode, export.export,
    ),
    "Evaluate": (evaluate.evaluate,),
    "Inspect": (
        doctor.doctor, inspect.inspect, explain.explain, probe.probe, negatives.negatives,
    ),
    "Whole jobs": (adapt.quickstart,),
}  # fmt: skip
for panel, verbs in _PANELS.items():
    for verb in verbs:
        app.command(cls=Command, rich_help_panel=panel)(command(verb))
app.add_typer(benchmark.app, name="benchmark", rich_help_panel="Evaluate")
app.command(name="list", cls=Command, rich_help_panel="Inspect")(command(listing.listing))


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


_INTERRUPTED = 130  # typer's exit code after Ctrl-C
_TERMINATED = 143  # what shells expect after SIGTERM
_RECORDING = (  # verbs that record steps from which they resume
    "adapt", "pretrain", "finetune", "index", "add", "sync", "evaluate", "sparsify", "benchmark",
    "quickstart",
)  # fmt: skip


def main() -> None:
    """Runs the command line; errors in the input end in a message, never in a traceback."""
    # Threads that wait for each other by spinning make training on CPU much slower as soon as
    # another program wants a core. Read when torch loads.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    received: list[int] = []
    try:
        _refuse_other_encodings(sys.argv)
        with _terminated_like_interrupted(received):
            _app_for(sys.argv[1:])()
    except SystemExit as end:
        if end.code == _INTERRUPTED:
            _say_stopped(received)
        if not end.code:
            _leave_process_group()
        raise
    except KeyboardInterrupt:  # before a command runs
        _say_stopped(received)
    except Exception as error:
        if received:  # a library turned the KeyboardInterrupt into another error
            _say_stopped(received)
        from isthmus.errors import InputError, IsthmusError, visible

        if isinstance(error, OSError) and error.filename is not None:
            # A file error that no reader handles: no permission, a name too long, a device.
            error = InputError(
                f"{error.strerror or type(error).__name__}: {error.filename!r}",
                "check the path and its permissions",
            )
        if not isinstance(error, IsthmusError):
            raise
        from isthmus import progress

        if progress.tracebacks:
            traceback.print_tb(error.__traceback__)
        sys.stderr.write(visible(f"error: {error}\n"))
        sys.exit(2)


def _app_for(arguments: list[str]) -> typer.Typer:
    """The application, with the called command alone where the first argument is one.

    To describe all commands takes typer as long as BM25 takes to search.
    """
    called = [one for one in app.registered_commands if arguments and arguments[0] == _name(one)]
    if not called:
        return app
    alone = copy.copy(app)
    alone.registered_commands, alone.registered_groups = called, []
    return alone


def _name(described: CommandInfo) -> str | None:
    return described.name or (described.callback and described.callback.__name__)


def _refuse_other_encodings(arguments: list[str]) -> None:
    from isthmus.errors import InputError, lone_surrogate

    for argument in arguments:
        if lone_surrogate(argument):
            raise InputError(
                f"the argument {argument!r} is not UTF-8",
                "rename the file or folder, or set the terminal to UTF-8",
            )


def _leave_process_group() -> None:
    """Closes the connection to other processes, whose threads may otherwise abort this one."""
    torch = sys.modules.get("torch")
    if torch and torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def _say_stopped(received: list[int]) -> NoReturn:
    verb = next((word for word in sys.argv[1:] if not word.startswith("-")), None)
    then = "starts anew"
    if verb in _RECORDING:
        then = "goes on from the last step that it recorded, or else from the start"
    reason = "stopped by SIGTERM" if received else "interrupted"
    sys.stderr.write(f"\n{reason}: the same command again {then}\n")
    sys.exit(_TERMINATED if received else _INTERRUPTED)


@contextmanager
def _terminated_like_interrupted(received: list[int]) -> Iterator[None]:
    """Makes SIGTERM raise KeyboardInterrupt within the block, and appends it to `received`.

    Several processes under torchrun keep the default: stopped at different steps, they would wait
    for each other.
    """
    process = os.getpid()

    def stop(number: int, frame: FrameType | None) -> None:
        if os.getpid() != process:  # a forked worker ends, as without a handler
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        received.append(number)
        raise KeyboardInterrupt

    alone = os.environ.get("WORLD_SIZE", "1") == "1"
    if not alone or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
