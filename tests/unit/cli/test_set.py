"""What the help of --set gives as an example works for the verb."""

from __future__ import annotations

import re
from typing import Any

import pytest
from typer.core import TyperGroup
from typer.main import get_group

from isthmus.cli import app
from isthmus.config import resolve, shipped_recipes
from isthmus.finetuning.resolved import resolve_stage
from isthmus.finetuning.settings import FinetuneSettings
from isthmus.inspection.settings import VERBS, settings_class
from isthmus.pretraining.recipe import assemble
from isthmus.pretraining.settings import PretrainSettings

RECIPES = {
    "pretrain": "bow", "masking": "bow", "importance": "cdmae", "finetune": "dense",
    "negatives": "dense",
}  # fmt: skip
GIVEN: dict[str, dict[str, Any]] = {
    "pretrain": {"corpus": "c", "output": "o", "model": "m"},
    "finetune": {"collection": "c", "output": "o", "model": "m"},
    "adapt": {"documents": "d", "output": "o", "model": "m"},
    "quickstart": {"output": "o"},
}


def help_of_set(verb: str) -> str:
    command: Any = get_group(app)
    for word in verb.split():
        assert isinstance(command, TyperGroup)
        command = command.commands[word]
    (option,) = [one for one in command.params if "--set" in one.opts]
    return str(option.help)


@pytest.mark.parametrize("verb", VERBS)
def test_the_example_of_set(verb: str) -> None:
    shown = help_of_set(verb)
    assert shown.endswith(f"isthmus list settings {verb}")
    found = re.search(r"--set ('[^']+'|\S+)\. ", shown)
    assert found is not None
    settings = settings_class(verb)
    recipe = RECIPES.get(verb) or next((one.name for one in shipped_recipes(verb)), None)
    overrides = [found[1].strip("'")]
    values = resolve(settings.verb, recipe, GIVEN.get(settings.verb), overrides)
    parsed = settings.parse(values, where="--set")
    plain = settings.parse(resolve(settings.verb, recipe, GIVEN.get(settings.verb)), where="")
    assert parsed != plain
    if isinstance(parsed, PretrainSettings):
        assemble(parsed)  # a part knows its own settings
    if isinstance(parsed, FinetuneSettings):
        resolve_stage(parsed)
