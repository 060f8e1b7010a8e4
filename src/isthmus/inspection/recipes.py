"""What there is to choose from: recipes, protocols, and the parts they are made of."""

from __future__ import annotations

import importlib
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from isthmus.collections.formats import FORMATS
from isthmus.config import Recipe, shipped_recipes
from isthmus.config.recipes import PROTOCOL_VERB
from isthmus.config.setting_list import settings_in
from isthmus.errors import InputError, SettingsError, choices, similar
from isthmus.finetuning.registries import (
    KINDS,
    LOSSES,
    NEGATIVES,
    PSEUDO_QUERIES,
    REGULARIZERS,
    TEACHERS,
)
from isthmus.pretraining.registries import (
    BOTTLENECKS,
    CORRUPTIONS,
    DECODERS,
    OBJECTIVES,
    PROBES,
    VIEWS,
)
from isthmus.retrieval.fusion import fusions

_PARTS = {
    "view": VIEWS,
    "corruption": CORRUPTIONS,
    "bottleneck": BOTTLENECKS,
    "decoder": DECODERS,
    "objective": OBJECTIVES,
    "probe": PROBES,
    "encoder": KINDS,
    "negatives": NEGATIVES,
    "teacher": TEACHERS,
    "loss": LOSSES,
    "regularizer": REGULARIZERS,
    "pseudo-queries": PSEUDO_QUERIES,
    "fusion": fusions,
    "collection": FORMATS,
}
# The settings in a recipe of parts that are mere functions.
_SHARED = {"loss": "LossSettings", "regularizer": "RegularizerSettings"}


@dataclass(frozen=True, slots=True)
class Entry:
    """A recipe, protocol or part; `text` is all of it, where one is asked for by name."""

    type: str
    name: str
    summary: str
    source: str = ""
    text: str = ""


@dataclass(frozen=True)
class Recipes:
    """Recipes, protocols or parts: a line for each, or one in full."""

    entries: tuple[Entry, ...]

    def to_dict(self) -> dict[str, Any]:
        """Everything, as JSON has it."""
        return asdict(self)

    def __str__(self) -> str:
        if self.entries[0].text:
            return "\n\n".join(one.text for one in self.entries)
        wide = max(len(one.name) for one in self.entries)
        # In a pipe a line for each, for grep.
        columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else 1000
        lines: list[str] = []
        for heading, some in groupby(self.entries, key=lambda one: one.type):
            lines += ["", heading]
            for one in some:
                line = f"  {one.name:{wide}}  {one.summary}" + f" [{one.source}]" * bool(one.source)
                lines += textwrap.wrap(line, columns, subsequent_indent=" " * (wide + 4))
        return "\n".join(lines[1:])


def recipes(name: str | None = None, *, parts: bool = False) -> Recipes:
    """The shipped recipes and protocols, or the parts they are made of; or one of them in full."""
    if name is None:
        return Recipes(tuple(_parts() if parts else map(_entry, _shipped())))
    found = [] if parts else [_in_full(one) for one in _named(name)]
    found = found or [_part(type_, name) for type_ in _types(name)]
    if not found:
        known = [] if parts else [one.name for one in _shipped()]
        raise SettingsError(
            f"there is no {'part' if parts else 'recipe or part'} named {name!r}",
            f"isthmus recipes{' --parts' if parts else ''} lists what there is",
            choices(name, [*known, *(one.name for one in _parts())]),
        )
    return Recipes(tuple(found))


def _shipped() -> list[Recipe]:
    found = [*shipped_recipes(), *shipped_recipes(PROTOCOL_VERB)]
    return sorted(found, key=lambda one: (one.verb == PROTOCOL_VERB, one.verb))


def _named(name: str) -> list[Recipe]:
    """The recipe in a file, or the shipped one of this name; none for the name of a part."""
    file = Path(name)
    if file.suffix not in (".yaml", ".yml"):
        return [one for one in _shipped() if one.name == name]
    if not file.is_file():
        fix = "check the path, or run `isthmus recipes`"
        raise InputError(f"there is no recipe file {name!r}", fix, similar(file))
    return [Recipe(file)]


def _entry(recipe: Recipe, text: str = "") -> Entry:
    type_ = f"isthmus {recipe.verb} --recipe NAME"
    if recipe.verb == PROTOCOL_VERB:
        type_ = "isthmus research benchmark NAME"
    elif recipe.verb == "quickstart":  # which takes no other
        type_ = "isthmus quickstart"
    return Entry(type_, recipe.name, recipe.summary, recipe.source, text)


def _in_full(recipe: Recipe) -> Entry:
    """The recipe's file, then its bases as comments: still a valid recipe when saved."""
    lines = recipe.file.read_text(encoding="utf-8").splitlines()
    for below in recipe.chain[1:]:
        lines += ["", f"# {below.name}, on which it builds:"]
        below_it = below.file.read_text(encoding="utf-8").splitlines()
        lines += [f"# {line}".rstrip() for line in below_it]
    for type_ in _types(recipe.name):
        lines += ["", f"# The {type_} of this name: isthmus recipes --parts {recipe.name}"]
    return _entry(recipe, "\n".join(lines))


def _parts() -> Iterator[Entry]:
    for type_, registry in _PARTS.items():
        yield from (Entry(type_, name, registry.summary(name)) for name in registry.names())


def _types(name: str) -> Iterable[str]:
    """The types of parts of which one has this name."""
    return [type_ for type_, registry in _PARTS.items() if name in registry.names()]


def _part(type_: str, name: str) -> Entry:
    """A part with its settings."""
    registry = _PARTS[type_]
    part, summary = registry.load(name), registry.summary(name)
    settings = getattr(part, "Settings", None)
    if type_ in _SHARED:
        settings = getattr(importlib.import_module(registry.place), _SHARED[type_])
    lines = [f"{type_} {name}: {summary}"]
    for one in settings_in(settings) if settings is not None else ():
        about = ": ".join(filter(None, (one.values, one.meaning)))
        lines += [f"  {one.path} = {one.value}", f"      {about}"]
    return Entry(type_, name, summary, text="\n".join(lines))
