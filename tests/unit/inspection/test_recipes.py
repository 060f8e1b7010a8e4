"""One recipe or part is shown with all its settings."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from isthmus.api import recipes
from isthmus.cli import app
from isthmus.config import Recipe, find_recipe, shipped_recipes
from isthmus.errors import InputError, SettingsError


def test_the_lists() -> None:
    names = [one.name for one in recipes().entries]
    assert {"cdmae", "dense", "adapt", "pretraining-small"} <= set(names)
    line = next(line for line in str(recipes()).splitlines() if line.startswith("  cdmae "))
    assert "CDMAE, arXiv 2023" in line, "one line in a pipe"
    assert {"view", "loss"} <= {one.type for one in recipes(parts=True).entries}


def test_a_part_with_its_settings() -> None:
    text = str(recipes("neighbours"))
    assert "near, overlap, random, mixture" in text
    assert "most tokens of a span, special ones included" in text


@pytest.mark.parametrize("name", [recipe.name for recipe in shipped_recipes()])
def test_a_printed_recipe_is_a_recipe(name: str, tmp_path: Path) -> None:
    """As `isthmus recipes NAME > mine.yaml` makes it, on whatever terminal."""
    printed = CliRunner().invoke(app, ["recipes", name], env={"COLUMNS": "40"}).stdout
    file = tmp_path / "mine.yaml"
    file.write_text(printed, encoding="utf-8")
    mine = Recipe(file)
    shipped = find_recipe(name, mine.verb)
    assert printed.startswith(shipped.file.read_text(encoding="utf-8"))
    assert yaml.safe_load(printed) == yaml.safe_load(shipped.file.read_text(encoding="utf-8"))
    assert mine.settings == shipped.settings


def test_a_users_own_recipe_with_those_it_builds_on(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("verb: finetune\nbase: three-stage\nsettings: {seed: 1}\n")
    text = str(recipes(str(tmp_path / "mine.yaml")))
    assert text.index("seed: 1") < text.index("# three-stage, on") < text.index("# dense, on")
    with pytest.raises(InputError, match="there is no recipe file"):
        recipes(str(tmp_path / "yours.yaml"))


def test_an_unknown_name_gets_the_nearest() -> None:
    with pytest.raises(SettingsError) as caught:
        recipes("cdma")
    assert caught.value.expected.startswith("cdmae")
    with pytest.raises(SettingsError) as caught:
        recipes("neighbors", parts=True)
    assert caught.value.expected.startswith("neighbours")
