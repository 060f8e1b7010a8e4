"""Commands from functions: a signature and a Google docstring are all that is said of one.

A parameter that may be given by position is an argument, and one by keyword alone is an option;
`model`, `models`, `output` and `recipe` are options wherever they may be given by name. A sequence
is repeated, a `bool` is a switch, a `Literal` offers its choices.
"""

from __future__ import annotations

import difflib
import inspect
import re
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import click

_OPTIONS = ("model", "models", "output", "recipe")
_SHORT = {"model": "-m", "models": "-m", "output": "-o", "recipe": "-r", "k": "-k", "dry_run": "-n"}
_LONG = {"k": "--top-k", "models": "--model", "as_": "--as"}
_METAVARS = {
    "filter": "TEST",
    "documents": "DOCUMENTS", "collection": "COLLECTION", "eval_on": "COLLECTION",
    "train_on": "COLLECTION", "also": "COLLECTION", "coverage": "DOCUMENTS", "model": "MODEL",
    "models": "MODEL", "rerank": "MODEL", "compare": "MODEL", "queries": "QUERIES",
    "recipe": "RECIPE", "output": "PATH", "use": "NAME", "judgements": "FOLDER", "data": "FOLDER",
    "measure": "MEASURE", "measures": "MEASURE", "only": "PATTERN", "split": "SPLIT",
}  # fmt: skip
# What users of other tools, and of an earlier isthmus, write for a parameter.
_ALSO_CALLED = {
    "k": ("depth", "top", "topk", "limit", "num-results"),
    "documents": ("corpus", "docs", "input", "dataset", "texts"),
    "collection": ("qrels", "dataset", "data", "corpus"),
    "use": ("model", "with", "retriever", "field"),
    "filter": ("where",),
    "systems": ("models", "model", "runs", "run", "systems"),
    "models": ("with", "models", "encoder"),
    "model": ("init", "encoder", "model-name"),
    "output": ("run", "out", "output-dir", "output-folder"),
    "eval_on": ("guard", "eval", "collection"),
    "train_on": ("labels", "train"),
    "read_write": ("writable",),
    "compare": ("beside",),
    "overwrite": ("force",),
    "rerank": ("reranker",),
    "ids": ("documents", "id"),
    "document": ("id",),
}  # fmt: skip
_SETTING = "settings"


class Command(click.Command):
    """A command whose help has its arguments, its options and its examples."""

    examples: tuple[str, ...] = ()

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Arguments, required options, and a word for all other options."""
        required = [p for p in self.params if isinstance(p, click.Option) and p.required]
        pieces = [one for p in self.params for one in p.get_usage_pieces(ctx)]
        return [*pieces, *(f"{p.opts[0]} {p.metavar}" for p in required), "[OPTIONS]"]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Arguments, options and examples, each under its heading."""
        super().format_options(ctx, formatter)
        if self.examples:
            with formatter.section("Examples"):
                for line in self.examples:
                    formatter.write(f"{'':{formatter.current_indent}}{line}\n")

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Names what an unknown option is called here; `--show-settings` requires nothing."""
        if any(one.partition("=")[0] == "--show-settings" for one in args):
            for parameter in self.params:
                parameter.required = False
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            what = f"there is no option {error.option_name}{self._elsewhere(error.option_name)}"
            raise click.UsageError(what, ctx) from None

    def _elsewhere(self, option: str) -> str:
        """What the option is called in this command, or an option that is spelt nearly so."""
        word = option.lstrip("-")
        for parameter in self.params:
            name = "models" if parameter.name == "models" else str(parameter.name)
            if word in _ALSO_CALLED.get(name, ()) or word.replace("-", "_") == name:
                return f"; here it is {_called(parameter)}"
        known = [one for p in self.params if isinstance(p, click.Option) for one in p.opts]
        close = difflib.get_close_matches(option, known, n=2)
        return f"; did you mean {' or '.join(close)}?" if close else ""


def _called(parameter: click.Parameter) -> str:
    if isinstance(parameter, click.Option):
        return "/".join(parameter.opts)
    return f"the argument {parameter.metavar}"


def command(
    name: str, function: Callable[..., Any], run: Callable[..., Any], hidden: bool = False
) -> Command:
    """The command of a function: `run` is called with the function and what was typed."""
    text = described(function)
    about = text.parameters
    parameters: list[click.Parameter] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name == "self":
            parameters.append(click.Argument(["index"], help=about["self"], metavar="INDEX"))
        elif parameter.name != _SETTING:
            parameters.append(_parameter(parameter, about[parameter.name]))
    has_settings = _SETTING in inspect.signature(function).parameters
    parameters.sort(key=lambda one: isinstance(one, click.Option) and not one.required)
    made = Command(
        name,
        params=[*parameters, *_common(name, has_settings)],
        callback=lambda **typed: run(name, function, typed),
        help=text.summary + ("\n\n" + text.more if text.more else ""),
        short_help=text.summary,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
        hidden=hidden,
    )
    made.examples = text.examples
    return made


def _parameter(parameter: inspect.Parameter, about: str) -> click.Parameter:
    """The argument or option that a parameter of a function is."""
    about = re.sub(r"[;,] in Python [^.]*", "", about)  # which is for other readers
    name, declared = parameter.name, str(parameter.annotation)
    required = _required(parameter)
    several = "Sequence" in declared or declared == "Filters"
    kind = _type(declared)
    by_name = parameter.kind is not parameter.POSITIONAL_ONLY and name in _OPTIONS
    if parameter.kind is parameter.KEYWORD_ONLY or by_name:
        names = [_LONG.get(name, f"--{name.replace('_', '-')}"), name]
        names[:0] = [_SHORT[name]] if name in _SHORT else []
        if declared.startswith("bool"):
            return click.Option(names, is_flag=True, default=False, help=about)
        shown = ""
        if parameter.default not in (parameter.empty, None, (), ""):
            shown = _shown(parameter.default)
        return click.Option(
            names, type=kind, multiple=several, required=required,
            metavar=_METAVARS.get(name) if kind is click.STRING else None,
            help=about + (f" [default: {shown}]" if shown else ""),
        )  # fmt: skip
    metavar = _METAVARS.get(name, name.upper().rstrip("S") if several else name.upper())
    if several:
        metavar += "..."
    return click.Argument(
        [name], help=about, type=kind, required=required, nargs=-1 if several else 1,
        metavar=metavar if required else f"[{metavar}]",
    )  # fmt: skip


def _required(parameter: inspect.Parameter) -> bool:
    """Whether it must be typed: what may be None in Python, but has to be said, need not be."""
    return parameter.default is parameter.empty and not str(parameter.annotation).endswith("| None")


def _shown(default: Any) -> str:
    return " ".join(map(str, default)) if isinstance(default, tuple) else str(default)


def _type(declared: str) -> Any:
    if choices := re.findall(r"Literal\[(.*?)\]", declared):
        return click.Choice([one.strip(" \"'") for one in choices[0].split(",")])
    plain = declared.partition(" | None")[0]
    return {"int": click.INT, "float": click.FLOAT}.get(plain, click.STRING)


def _common(name: str, has_settings: bool) -> Iterator[click.Option]:
    """The options that every command has, and those of every command with settings."""
    if has_settings:
        yield click.Option(
            ["-s", "--set", _SETTING], multiple=True, metavar="PATH=VALUE",
            help="Value of one setting, by its path in --show-settings. Repeatable.",
        )  # fmt: skip
        yield click.Option(
            ["--show-settings"], is_flag=False, flag_value="", metavar="[PREFIX]",
            help="Print every setting (those below PREFIX), where its value comes from, and stop.",
        )  # fmt: skip
    yield click.Option(["--json", "as_json"], is_flag=True, help="Print the result as JSON.")
    yield click.Option(["-q", "--quiet"], is_flag=True, help="Print results only.")
    yield click.Option(
        ["-v", "--verbose"], is_flag=True, help="Print every step, and where an error was raised."
    )


class Described:
    """What a Google docstring says of a function."""

    def __init__(self, text: str) -> None:
        sections = re.split(r"^(Args|Returns|Raises|Examples):\n", text, flags=re.M)
        head, named = sections[0], dict(zip(sections[1::2], sections[2::2], strict=True))
        paragraphs = [" ".join(one.split()) for one in head.strip().split("\n\n")]
        self.summary, self.more = paragraphs[0], "\n\n".join(paragraphs[1:])
        self.parameters = {
            found[1]: " ".join(found[2].split())
            for found in re.finditer(
                r"^    (\w+): (.*(?:\n        .*)*)", named.get("Args", ""), re.M
            )
        }
        lines = (line.strip() for line in named.get("Examples", "").splitlines())
        self.examples = tuple(line for line in lines if line.startswith("isthmus "))


def described(function: Callable[..., Any]) -> Described:
    """The docstring of a function, in its parts."""
    return Described(inspect.cleandoc(function.__doc__ or ""))


def call(function: Callable[..., Any], typed: Mapping[str, Any]) -> tuple[Any, float]:
    """What the function returns for what was typed, and the seconds it took.

    Where only settings are shown, what must be given may be missing: its name stands for it.
    """
    began = time.monotonic()
    given: dict[str, Any] = {}
    positional: list[Any] = []
    for name, parameter in inspect.signature(function).parameters.items():
        if name == "self":
            from isthmus.api import Index

            positional.append(Index(typed["index"] or "INDEX"))
            continue
        value = typed.get(name)
        if value in (None, ()):
            if parameter.default is not parameter.empty:
                continue
            if _required(parameter):
                value = name.upper() if value is None else (name.upper(),)
        if parameter.kind is parameter.POSITIONAL_ONLY:
            positional.append(value)
        else:
            given[name] = value
    return function(*positional, **given), time.monotonic() - began
