"""Strict settings, recipes, overrides, and the snapshot written beside every output."""

from isthmus.config.recipes import Overrides, Recipe, find_recipe, resolve, shipped_recipes
from isthmus.config.settings import Settings, allowed_values, inner_model

__all__ = [
    "Overrides",
    "Recipe",
    "Settings",
    "allowed_values",
    "find_recipe",
    "inner_model",
    "resolve",
    "shipped_recipes",
]
