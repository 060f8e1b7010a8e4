"""Strict settings, recipes, overrides, and the snapshot written beside every output."""

from isthmus.config.recipes import Recipe, find_recipe, resolve, shipped_recipes
from isthmus.config.settings import Settings

__all__ = ["Recipe", "Settings", "find_recipe", "resolve", "shipped_recipes"]
