"""What there is to choose from: recipes, and the parts they are made of."""

from __future__ import annotations

from rich.table import Table

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
    "loss": "isthmus.finetune.losses",
    "fusion": "isthmus.search.fusion",
    "collection": "isthmus.collections.formats",
}


def listing(what: str = "recipes") -> Table:
    """A table of the shipped recipes or of all parts, a line each."""
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
    raise SettingsError(
        f"there is no list of {what!r}",
        where="isthmus list",
        allowed=choices(what, ("recipes", "parts")),
        remedy="isthmus list recipes, or isthmus list parts",
    )
