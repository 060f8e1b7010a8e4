"""What there is to choose from: recipes, and the parts they are made of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

from rich.console import Group, RenderableType
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from isthmus.config import Recipe, shipped_recipes
from isthmus.errors import SettingsError, choices
from isthmus.registry import Registry

# By name, not by import: listing must not load what it lists.
_PARTS = {
    "view": "isthmus.pretrain.views",
    "corruption": "isthmus.pretrain.corruption",
    "bottleneck": "isthmus.pretrain.bottlenecks",
    "decoder": "isthmus.pretrain.decoders",
    "objective": "isthmus.pretrain.objectives",
    "probe": "isthmus.pretrain.probes",
    "negatives": "isthmus.finetune.negatives",
    "teacher": "isthmus.finetune.teachers",
    "loss": "isthmus.finetune.losses",
    "regularizer": "isthmus.finetune.regularizers",
    "fusion": "isthmus.search.fusion",
    "collection": "isthmus.collections.formats",
    "engine": "isthmus.indexes.engines",
}


def listing(*words: str) -> RenderableType:
    """What the words after `isthmus list` name: recipes or parts, a line each; or one in full.

    To be printed with `soft_wrap=True`: a recipe's lines are as long as they are.
    """
    what, *names = words or ("recipes",)
    if what == "recipes" and not names:
        return _recipes()
    if what == "parts" and not names:
        return _parts()
    if what == "parts" and _kinds(names[0]):
        return Group(*_one_part(names[0]))
    if not names:
        for recipe in shipped_recipes():
            if recipe.name == what:
                return _one_recipe(recipe)
        if _kinds(what):
            return Group(*_one_part(what))
    known = [recipe.name for recipe in shipped_recipes()] if what != "parts" else []
    known += [name for kind, package in _PARTS.items() for name in Registry(package, kind).names()]
    raise SettingsError(
        f"there is no list of {' '.join(words)!r}, and no recipe or part of this name",
        where="isthmus list",
        allowed=choices(words[-1], ("recipes", "parts", *dict.fromkeys(known))),
        remedy="isthmus list recipes, isthmus list parts, or isthmus list NAME",
    )


def _recipes() -> RenderableType:
    table = Table("recipe", "verb", "what it does", "source")
    for recipe in shipped_recipes():
        table.add_row(recipe.name, recipe.verb, recipe.summary, recipe.paper)
    return table


def _parts() -> RenderableType:
    table = Table("kind", "part", "what it does")
    for kind, package in _PARTS.items():
        registry = Registry(package, kind)
        for name in registry.names():
            table.add_row(kind, name, registry.summary(name))
    return table


def _one_recipe(recipe: Recipe) -> RenderableType:
    """The recipe's file, and as comments what else there is to say: written to a file, a recipe."""
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
    """As what the name occurs among the parts."""
    return [kind for kind, package in _PARTS.items() if name in Registry(package, kind).names()]


def _one_part(name: str) -> Iterator[RenderableType]:
    for kind in _kinds(name):
        registry = Registry(_PARTS[kind], kind)
        yield Text(f"{kind} {name}: {registry.summary(name)}")
        settings = getattr(registry.load(name), "Settings", None)
        if settings is None or not settings.model_fields:
            continue
        table = Table("setting", "type", "default", "what it is")
        for field, about in settings.model_fields.items():
            default = "required" if about.is_required() else repr(about.get_default())
            table.add_row(field, _type(about.annotation), default, about.description or "")
        yield table


def _type(annotation: Any) -> str:
    if get_origin(annotation) is Literal:
        return ", ".join(str(choice) for choice in get_args(annotation))
    name = annotation.__name__ if isinstance(annotation, type) else str(annotation)
    return name.replace("typing.", "")
