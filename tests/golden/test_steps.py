"""docs/steps.md: its numbers are those of the code, and its sums are right."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.golden.steps import BLOCK, PAGE, Step, evaluated, result

from isthmus.config import shipped_recipes

TEXT = PAGE.read_text(encoding="utf-8")
BLOCKS = {found[2]: found[0] for found in BLOCK.finditer(TEXT)}
NUMBER = re.compile(r"−?\d+\.\d+")
LAST_PLACE = 0.0011  # one unit, of numbers that another machine may round the other way


def test_every_recipe_has_a_section() -> None:
    assert set(BLOCKS) == {recipe.name for recipe in shipped_recipes("pretrain")}


@pytest.mark.parametrize("recipe", BLOCKS)
def test_a_step(recipe: str, tmp_path: Path) -> None:
    step = Step(recipe, tmp_path)
    shown, expected = BLOCKS[recipe].split("\n", 2)[2], step.page()
    assert NUMBER.split(expected) == NUMBER.split(shown.rpartition("\n\n<!--")[0])
    for one, other in zip(NUMBER.findall(expected), NUMBER.findall(shown), strict=True):
        assert value(one) == pytest.approx(
            value(other), abs=10 * LAST_PLACE if len(one) < 5 else LAST_PLACE
        )
    lines = {name.strip(): result(line) for name, line in equations(recipe)}
    for objective, computed in step.values().items():
        assert value(lines[objective]) == pytest.approx(computed, abs=2e-3), objective
    assert value(lines["loss"]) == pytest.approx(step.loss(), abs=5e-3)


@pytest.mark.parametrize("recipe", BLOCKS)
def test_sums_can_be_checked_by_hand(recipe: str) -> None:
    found = list(equations(recipe))
    assert len(found) >= 2
    for name, line in found:
        left, _, right = line.rpartition(" = ")
        assert round(evaluated(left), 3) == pytest.approx(value(right), abs=1e-9), name


def equations(recipe: str) -> list[tuple[str, str]]:
    """Names and equations of a section."""
    found = re.findall(r"^(\S.{14})(.+ = \S+)$", BLOCKS[recipe], re.MULTILINE)
    return [(name, line) for name, line in found]


def value(shown: str) -> float:
    return float(shown.replace("−", "-"))
