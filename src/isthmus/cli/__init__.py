"""The command line: commands made from `isthmus.api`, signals, exit codes and errors."""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from types import FrameType
from typing import Any, NoReturn

import click

from isthmus import api
from isthmus._version import __version__
from isthmus.cli.build import call, command, described

_PANELS = {
    "Start here": ("quickstart", "adapt", "doctor"),
    "Index and search": ("index", "search", "serve", "add", "delete", "sync", "export"),
    "Measure": ("evaluate", "tune", "explain"),
    "Train": ("pretrain", "finetune", "recipes"),
}
_RESEARCH = ("benchmark", "report", "probe", "inspect", "negatives")
_RESUMING = ("adapt", "quickstart", "pretrain", "finetune", "index", "add", "sync", "evaluate", "research")  # noqa: E501 # fmt: skip
_EXAMPLES = """\
    isthmus adapt notes/ -m sentence-transformers/all-MiniLM-L6-v2 -o runs/notes
    isthmus search runs/notes "how do I renew a certificate"
"""
_ALSO_CALLED = {
    "train": ["adapt", "pretrain", "finetune"],
    "encode": ["export"],
    "embed": ["export"],
    "list": ["recipes"],
    "merge": ["sync"],
    "eval": ["evaluate"],
    "build": ["index"],
    "query": ["search"],
}
_COMPLETE = "_ISTHMUS_COMPLETE"
_INTERRUPTED = 130  # the exit code after Ctrl-C
_TERMINATED = 143  # what shells expect after SIGTERM


def _function(name: str) -> Callable[..., Any] | None:
    """The function of `api`, or the method of its `Index`, that a command is made from."""
    return getattr(api, name, None) or getattr(api.Index, name, None)


class _Commands(click.Group):
    """Commands that are built when they are called."""

    def __init__(self, name: str, functions: Mapping[str, Callable[..., Any] | None], **more: Any):
        super().__init__(name, **more)
        self.functions = {name: one for name, one in functions.items() if one is not None}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in the order of the help."""
        return [*self.functions, *self.commands]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of this name."""
        if cmd_name in self.functions:
            return command(cmd_name, self.functions[cmd_name], _run)
        return self.commands.get(cmd_name)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """The called command; one that there is not is named with those that may be meant."""
        known = self.list_commands(ctx)
        if args[0] in known or args[0].startswith("-"):
            return super().resolve_command(ctx, args)
        meant = _ALSO_CALLED.get(args[0]) or get_close_matches(args[0], known, n=1)
        *others, last = meant or [""]
        named = f"; did you mean {' or '.join(filter(None, (', '.join(others), last)))}?"
        what = f"there is no command {args[0]!r}{named if meant else ''}"
        raise click.UsageError(what, ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The commands, each with the first line of its docstring."""
        with formatter.section("Commands"):
            formatter.write_dl(_rows(self.functions))


class _Isthmus(_Commands):
    """All commands, in panels."""

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """What isthmus does, and its two most important commands."""
        super().format_help_text(ctx, formatter)
        formatter.write(f"\n{_EXAMPLES}")

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The commands by what they are for."""
        widest = max(map(len, self.list_commands(ctx)))
        for panel, names in _PANELS.items():
            with formatter.section(panel):
                found = {name: self.functions[name] for name in names if name in self.functions}
                if found:
                    formatter.write_dl([(f"{n:{widest}}", about) for n, about in _rows(found)])
        with formatter.section("More"):
            about = f"Benchmarks and diagnostics: {', '.join(_research.functions)}."
            formatter.write_dl([(f"{'research':{widest}}", about)])

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The options here, and those that every command has."""
        self.format_commands(ctx, formatter)
        formatter.write(
            "\nOptions: -V/--version, -h/--help, --completion bash|zsh|fish.\n"
            "Every command: --json, -q, -v, -s PATH=VALUE, --show-settings.\n"
        )


def _rows(functions: Mapping[str, Callable[..., Any]]) -> list[tuple[str, str]]:
    return [(name, described(one).summary) for name, one in functions.items()]


def _say_version(ctx: click.Context, parameter: click.Parameter, wanted: bool) -> None:
    if wanted:
        click.echo(f"isthmus {__version__}")
        ctx.exit()


def _say_completion(ctx: click.Context, parameter: click.Parameter, shell: str | None) -> None:
    if shell is not None:
        from click.shell_completion import get_completion_class

        completer = get_completion_class(shell)
        assert completer is not None
        click.echo(completer(app, {}, "isthmus", _COMPLETE).source())
        ctx.exit()


_HELP: Any = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
_research = _Commands(
    "research",
    {name: getattr(api, name, None) for name in _RESEARCH},
    help="Benchmarks and diagnostics of models.",
    no_args_is_help=True,
    context_settings=_HELP,
)
app = _Isthmus(
    "isthmus",
    {name: _function(name) for names in _PANELS.values() for name in names},
    help="Train a retriever on your own documents, search with it, and measure what it gained.",
    no_args_is_help=True,
    context_settings=_HELP,
    subcommand_metavar="COMMAND [ARGS]",
    options_metavar="",
    params=[
        click.Option(
            ["-V", "--version"], is_flag=True, is_eager=True, expose_value=False,
            callback=_say_version, help="Print the version.",
        ),
        click.Option(
            ["--completion"], type=click.Choice(["bash", "zsh", "fish"]), is_eager=True,
            expose_value=False, callback=_say_completion, help="Print a completion script.",
        ),
    ],
)  # fmt: skip
app.add_command(_research)


@app.command("help", hidden=True)
@click.argument("words", nargs=-1)
@click.pass_context
def _help(ctx: click.Context, words: tuple[str, ...]) -> None:
    """Print the help of a command."""
    app.main([*words, "--help"], prog_name="isthmus")


def _run(name: str, function: Callable[..., Any], typed: dict[str, Any]) -> None:
    """Calls the function of a command, and prints what it returned."""
    from isthmus import progress
    from isthmus.cli import output

    progress.set_voice(typed["quiet"], typed["verbose"])
    progress.as_json = typed["as_json"]
    try:
        if (prefix := typed.get("show_settings")) is not None:
            from isthmus.cli.show_settings import shown_settings

            found, seconds = shown_settings(name, lambda: call(function, typed), prefix), 0.0
        else:
            found, seconds = call(function, typed)
        code = output.show(name, found, typed, seconds)
    finally:
        progress.console.quiet = progress.as_json = False
    click.get_current_context().exit(code)


def main() -> None:
    """Runs the command line; errors in the input end in a message, never in a traceback."""
    # Threads that wait for each other by spinning make training on CPU much slower as soon as
    # another program wants a core. Read when torch loads.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    # At the end Python looks through all objects once more, which takes seconds after torch.
    atexit.register(gc.freeze)
    received: list[int] = []
    try:
        _refuse_other_encodings(sys.argv)
        with _terminated_like_interrupted(received):
            code = app.main(prog_name="isthmus", complete_var=_COMPLETE, standalone_mode=False)
        if not code:
            _leave_process_group()
        sys.exit(code or 0)
    except (KeyboardInterrupt, click.Abort):
        _say_stopped(received)
    except Exception as error:
        if received:  # a library turned the KeyboardInterrupt into another error
            _say_stopped(received)
        _say_error(error)


def _say_error(error: Exception) -> NoReturn:
    """Prints an error of the input and exits with 2; raises any other."""
    from isthmus.errors import InputError, IsthmusError

    if isinstance(error, click.UsageError):
        error = _usage(error)
    elif isinstance(error, OSError) and error.filename is not None:
        # A file error that no reader handles: no permission, a name too long, a device.
        error = InputError(
            f"{error.strerror or type(error).__name__}: {error.filename!r}",
            "check the path and its permissions",
        )
    if not isinstance(error, IsthmusError):
        raise error
    from isthmus import progress
    from isthmus.cli.output import show_error

    if progress.tracebacks:
        traceback.print_tb(error.__traceback__)
    show_error(error, as_json="--json" in sys.argv)
    sys.exit(2)


def _usage(error: click.UsageError) -> Exception:
    """What was typed wrongly, with the command's help as the next step."""
    from isthmus.errors import InputError

    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        error.show()
        sys.exit(2)
    path = "isthmus" if error.ctx is None else error.ctx.command_path
    what = error.format_message().rstrip(".")
    return InputError(what[:1].lower() + what[1:], f"{path} --help shows how it is called")


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
    name = next((word for word in sys.argv[1:] if not word.startswith("-")), None)
    then = ": run the same command again to resume" if name in _RESUMING else ""
    sys.stderr.write(f"\n{'stopped by SIGTERM' if received else 'interrupted'}{then}\n")
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
