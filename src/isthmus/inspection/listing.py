"""What there is to choose from: recipes, and the parts they are made of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

from rich.console import Group, RenderableType
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from isthmus.config import shipped_recipes
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


def listing(what: str = "recipes") -> RenderableType:
    """The shipped recipes or all parts, a line each; or one of them, with all its settings."""
    if what == "recipes":
        table = Table("recipe", "verb", "what it does", "source")
        for recipe in shipped_recipes():
            table.add_row(recipe.name, recipe.verb, recipe.summary, recipe.paper)
        return table
    if what == "parts":
        table = Table("kind", "part", "what it does")
        for kind, package in _PARTS.items():
            registry = Registry(package, kind)
            for name in registry.names():
                table.add_row(kind, name, registry.summary(name))
        return table
    shown = [*_one_recipe(what), *_one_part(what)]
    if shown:
        return Group(*shown)
    names = [recipe.name for recipe in shipped_recipes()]
    names += [name for kind, package in _PARTS.items() for name in Registry(package, kind).names()]
    raise SettingsError(
        f"there is no list of {what!r}, and no recipe or part of this name",
        where="isthmus list",
        allowed=choices(what, ("recipes", "parts", *dict.fromkeys(names))),
        remedy="isthmus list recipes, isthmus list parts, or isthmus list NAME",
    )


def _one_recipe(name: str) -> Iterator[RenderableType]:
    for recipe in shipped_recipes():
        if recipe.name == name:
            for shown in recipe.chain:
                text = shown.file.read_text(encoding="utf-8")
                if shown is not recipe:
                    yield Text(f"\n# {shown.name}, on which it builds")
                yield Syntax(text, "yaml", theme="ansi_dark", word_wrap=True)


def _one_part(name: str) -> Iterator[RenderableType]:
    for kind, package in _PARTS.items():
        registry = Registry(package, kind)
        if name not in registry.names():
            continue
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
