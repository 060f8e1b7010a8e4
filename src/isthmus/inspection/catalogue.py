"""What there is to choose from: recipes, protocols, and the parts they are made of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from isthmus.config import Recipe, shipped_recipes
from isthmus.config.recipes import PROTOCOL_VERB
from isthmus.errors import InputError, SettingsError, choices, similar
from isthmus.inspection.settings import (
    VERBS,
    Setting,
    load_class,
    settings_class,
    settings_in,
    settings_of,
)
from isthmus.registry import Registry

# By name, not by import: listing must not load what it lists.
_PARTS = {
    "view": "isthmus.pretraining.views",
    "corruption": "isthmus.pretraining.corruption",
    "bottleneck": "isthmus.pretraining.bottlenecks",
    "decoder": "isthmus.pretraining.decoders",
    "objective": "isthmus.pretraining.objectives",
    "probe": "isthmus.pretraining.probes",
    "encoder": "isthmus.finetuning.kinds",
    "negatives": "isthmus.finetuning.negatives",
    "teacher": "isthmus.finetuning.teachers",
    "loss": "isthmus.finetuning.losses",
    "regularizer": "isthmus.finetuning.regularizers",
    "pseudo-queries": "isthmus.finetuning.pseudo_queries",
    "fusion": "isthmus.retrieval.fusion",
    "collection": "isthmus.collections.formats",
}
# The settings in a recipe of parts that are mere functions.
_SHARED = {
    "loss": "isthmus.finetuning.losses._base:LossSettings",
    "regularizer": "isthmus.finetuning.regularizers._base:RegularizerSettings",
}

_WIDE = 110  # columns from which on a row is a line, nearly always


def listing(*words: str) -> RenderableType:
    """What the words after `isthmus list` name: recipes, parts, settings of a verb, or one in full.

    To be printed with `soft_wrap=True`: a recipe's lines are as long as they are.
    """
    what, *names = words or ("recipes",)
    if what in ("recipes", "protocols") and not names:
        return _recipes(PROTOCOL_VERB if what == "protocols" else None)
    if what == "settings":
        return Group(*_settings(names))
    if what == "parts" and not names:
        return _parts()
    if what == "parts" and _kinds(names[0]):
        return Group(*_one_part(names[0]))
    if not names:
        if Path(what).suffix in (".yaml", ".yml"):
            return _one_recipe(_own_recipe(Path(what)))
        for recipe in _shipped():
            if recipe.name == what:
                return _one_recipe(recipe)
        if _kinds(what):
            return Group(*_one_part(what))
    known = [recipe.name for recipe in _shipped()] if what != "parts" else []
    known += [name for kind, package in _PARTS.items() for name in Registry(package, kind).names()]
    raise SettingsError(
        f"isthmus list: there is no list, recipe or part named {' '.join(words)!r}",
        "isthmus list recipes, protocols, parts, settings COMMAND, NAME, or the path of a recipe",
        choices(words[-1], dict.fromkeys(("recipes", "protocols", "parts", "settings", *known))),
    )


def _shipped() -> list[Recipe]:
    return [*shipped_recipes(), *shipped_recipes(PROTOCOL_VERB)]


def _recipes(of: str | None = None) -> RenderableType:
    recipes = shipped_recipes(of)
    shown: list[RenderableType] = []
    rows: list[tuple[str, ...]] = []
    for verb in dict.fromkeys(recipe.verb for recipe in recipes):
        wide, narrow = _table(), _table()
        for table in (wide, narrow):
            table.add_column(verb if of else f"{verb} --recipe", no_wrap=True)
            table.add_column("what it does", overflow="fold")
        wide.add_column("source")
        for recipe in recipes:
            if recipe.verb == verb:
                name, source = Text(recipe.name), f" [{recipe.source}]" if recipe.source else ""
                wide.add_row(name, Text(recipe.summary), Text(recipe.paper))
                narrow.add_row(name, Text(recipe.summary).append(source, style="dim"))
                rows.append((verb, recipe.name, recipe.summary, recipe.paper))
        shown += [_Fitting(wide, narrow), Text()]
    return _ForPrograms(Group(*shown[:-1]), rows)


def _parts() -> RenderableType:
    table = _table()
    table.add_column("kind", no_wrap=True)
    table.add_column("part", no_wrap=True)
    table.add_column("what it does")
    rows = []
    for kind, package in _PARTS.items():
        registry = Registry(package, kind)
        for name in registry.names():
            rows.append((kind, name, registry.summary(name)))
            table.add_row(*map(Text, rows[-1]))
    return _ForPrograms(table, rows)


def _own_recipe(file: Path) -> Recipe:
    if not file.is_file():
        raise InputError(
            f"there is no recipe file {str(file)!r}",
            "check the path, or run `isthmus list recipes`",
            similar(file),
        )
    return Recipe(file)


def _one_recipe(recipe: Recipe) -> RenderableType:
    """The recipe's file, then its bases as comments: still a valid recipe when saved."""
    lines = recipe.file.read_text(encoding="utf-8").splitlines()
    for below in recipe.chain[1:]:
        lines += ["", f"# {below.name}, on which it builds:"]
        below_it = below.file.read_text(encoding="utf-8").splitlines()
        lines += [f"# {line}".rstrip() for line in below_it]
    for kind in _kinds(recipe.name):
        lines += ["", f"# The {kind} of this name: isthmus list parts {recipe.name}"]
    text = Syntax("", "yaml", theme="ansi_dark").highlight("\n".join(lines))
    text.rstrip()
    return text


def _kinds(name: str) -> list[str]:
    """The kinds of parts that have one of this name."""
    return [kind for kind, package in _PARTS.items() if name in Registry(package, kind).names()]


def _one_part(name: str) -> Iterator[RenderableType]:
    for kind in _kinds(name):
        registry = Registry(_PARTS[kind], kind)
        yield Text(f"{kind} {name}: {registry.summary(name)}")
        own = getattr(registry.load(name), "Settings", None)
        settings = load_class(_SHARED[kind]) if kind in _SHARED else own
        if settings is not None and settings.model_fields:
            yield _settings_table(settings_in(settings))


def _settings(words: Sequence[str]) -> Iterator[RenderableType]:
    """The settings of the verb that the words begin with, under the path that follows it."""
    length = 2 if " ".join(words[:2]) in VERBS else 1
    verb, under = " ".join(words[:length]), ".".join(words[length:]).strip(".")
    yield _settings_table(settings_of(verb, under))
    if shipped_recipes(settings_class(verb).verb):
        yield Text("\nRecipes set other defaults, parts take more settings: isthmus list NAME.")


def _settings_table(settings: Iterable[Setting]) -> RenderableType:
    wide, narrow = _table(), _table(show_header=False)
    wide.add_column("setting", no_wrap=True)
    wide.add_column("default", overflow="fold", max_width=20)
    wide.add_column("what it is", overflow="fold")
    narrow.add_column(overflow="fold")
    for one in settings:
        about = Text(": ".join(filter(None, (one.values, one.meaning))))
        wide.add_row(Text(one.path), Text(one.default), about)
        narrow.add_row(Text(f"{one.path} = {one.default}", style="bold"))
        narrow.add_row(Padding(about, (0, 0, 0, 4)))
    return _Fitting(wide, narrow)


def _table(show_header: bool = True) -> Table:
    return Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, show_header=show_header)


@dataclass(frozen=True)
class _Fitting:
    """The wide table where the terminal has room for it, else the narrow one."""

    wide: RenderableType
    narrow: RenderableType

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self.wide if options.max_width >= _WIDE else self.narrow


@dataclass(frozen=True)
class _ForPrograms:
    """Tables on a terminal; where a pipe or a file is written, one line for each row, for grep."""

    tables: RenderableType
    rows: Sequence[Sequence[str]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if console.is_terminal:
            yield self.tables
            return
        widths = [max(map(len, column)) for column in zip(*self.rows, strict=True)]
        for row in self.rows:
            cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            yield Text("  ".join(cells).rstrip())
