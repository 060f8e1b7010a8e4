"""Recipes say what docs/how-faithful.md pins to its source, and the page says what recipes do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from isthmus.config import Settings, plain_yaml, shipped_recipes
from isthmus.config.recipes import Recipe, merged
from isthmus.finetuning.losses import LossSettings
from isthmus.finetuning.registries import NEGATIVES
from isthmus.finetuning.regularizers import RegularizerSettings
from isthmus.finetuning.settings import FinetuneSettings
from isthmus.pretraining.registries import BOTTLENECKS, CORRUPTIONS, DECODERS, OBJECTIVES, VIEWS
from isthmus.pretraining.settings import PretrainSettings
from isthmus.registry import Registry
from isthmus.training.settings import TrainingSettings

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "how-faithful.md").read_text(encoding="utf-8")
DEFAULTS = "Where recipes are silent"
SECTION = re.compile(r"^##+ (.+)$", re.MULTILINE)
BASE = re.compile(r"^As in \[([\w-]+)\]\(#\1\), and:$", re.MULTILINE)
ROW = re.compile(r"^\| `([\w.-]+)` \| `(.+?)` \|", re.MULTILINE)
PROTOCOLS = ROOT / "src" / "isthmus" / "protocols"
PUBLISHED = [Recipe(file) for file in sorted((PROTOCOLS / "recipes").glob("*.yaml"))]
TRIED = [Recipe(file) for file in sorted((ROOT / "experiments").glob("*.yaml"))]
RECIPES = {
    recipe.name: recipe
    for recipe in [*shipped_recipes(), *PUBLISHED, *(recipe for recipe in TRIED if recipe.paper)]
}
# What of a protocol changes what is trained, by the path of the setting.
TRAINS = re.compile(
    r"(base\.settings|pretraining|finetuning|seeds|collections\.[^.]+\.pretraining"
    r"|(retrievers|methods|tasks)\.[^.]+\.(settings|finetuning|teacher|queries))(\.|$)"
)
# How fast it goes and what is kept, which changes nothing that is learnt.
WITHOUT_EFFECT = {
    "bf16", "packing", "kernels", "graphs", "torch_compile", "gradient_checkpointing",
    "logging_steps", "save_steps", "save_minutes", "save_total_limit", "report_to",
    "dataloader_num_workers",
}  # fmt: skip


@cache
def sections() -> dict[str, str]:
    _, *rest = SECTION.split(PAGE)
    return dict(zip(rest[::2], rest[1::2], strict=True))


def pinned(name: str) -> dict[str, Any]:
    """What a section pins, with what it builds on below it."""
    base = BASE.search(sections()[name])
    values = pinned(base[1]) if base else {}
    for setting, ours in ROW.findall(sections()[name]):
        value = plain_yaml.load(ours)
        for key in reversed(setting.split(".")):
            value = {key: value}
        values = merged(values, value)
    return values


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from leaves(inner, f"{path}.{key}" if path else key)
    else:
        yield path, value


def differences(page: dict[str, Any], code: dict[str, Any]) -> list[str]:
    one, other = dict(leaves(page)), dict(leaves(code))
    return [
        f"{path}: {one.get(path, 'no row')} on the page, {other.get(path, 'nothing')} in the code"
        for path in {**one, **other}
        if path not in one or path not in other or one[path] != other[path]
    ]


def trained() -> dict[str, dict[str, Any]]:
    """The settings of each protocol, its own alone, that change what is trained."""
    found = {
        f"protocols/{file.stem}": {
            path: value for path, value in leaves(Recipe(file).own) if TRAINS.match(path)
        }
        for file in sorted(PROTOCOLS.glob("*.yaml"))
    }
    return {name: settings for name, settings in found.items() if settings}


TRAINED = trained()


@pytest.mark.parametrize("name", [*RECIPES, *TRAINED])
def test_every_setting_has_the_value_on_the_page(name: str) -> None:
    values = TRAINED[name] if name in TRAINED else RECIPES[name].settings
    assert not differences(pinned(name), values)


def defaults(settings: type[Settings]) -> dict[str, Any]:
    """The settings that need not be given, nested ones as mappings."""
    found = {
        name: field.get_default(call_default_factory=True)
        for name, field in settings.model_fields.items()
        if not field.is_required()
    }
    return {
        name: value.model_dump() if isinstance(value, Settings) else value
        for name, value in found.items()
    }


def parts(registry: Registry) -> dict[str, Any]:
    known = {name: defaults(registry.load(name).Settings) for name in registry.names()}
    return {name: values for name, values in known.items() if values}


def test_what_recipes_leave_out_has_the_value_on_the_page() -> None:
    page = pinned(DEFAULTS)
    whole = {
        "view": parts(VIEWS),
        "corruption": parts(CORRUPTIONS),
        "bottleneck": parts(BOTTLENECKS),
        "decoder": parts(DECODERS),
        "objective": parts(OBJECTIVES),
        "negatives": parts(NEGATIVES),
        "regularizer": defaults(RegularizerSettings),
        "loss": defaults(LossSettings),
        "training": {
            name: value
            for name, value in defaults(TrainingSettings).items()
            if name not in WITHOUT_EFFECT
        },
    }
    # A setting that is null by default is none yet: it needs no row before it has a value.
    unset = {path for path, value in leaves(whole) if value is None}
    found = differences({name: page[name] for name in whole}, whole)
    assert not [one for one in found if "no row" not in one or one.partition(":")[0] not in unset]
    for name, settings in {"finetune": FinetuneSettings, "pretrain": PretrainSettings}.items():
        code = dict(leaves(defaults(settings)))
        for path, value in leaves(page[name]):
            assert code[path] == value, f"{name}.{path}"
    assert set(page) == {*whole, "finetune", "pretrain"}
