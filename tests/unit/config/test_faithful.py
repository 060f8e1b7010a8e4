"""Every setting of a recipe says where it comes from, and the page on it says what recipes do."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

from isthmus.config import Settings, plain_yaml
from isthmus.config.recipes import merged
from isthmus.finetuning.losses import LossSettings
from isthmus.finetuning.registries import NEGATIVES
from isthmus.finetuning.regularizers import RegularizerSettings
from isthmus.finetuning.settings import FinetuneSettings
from isthmus.pretraining.registries import BOTTLENECKS, CORRUPTIONS, DECODERS, OBJECTIVES, VIEWS
from isthmus.pretraining.settings import PretrainSettings
from isthmus.registry import Registry
from isthmus.training.settings import TrainingSettings

ROOT = Path(__file__).parents[3]
DEFAULTS = "Where recipes are silent"
ROW = re.compile(r"^\| `([\w.-]+)` \| `(.+?)` \|", re.MULTILINE)
# How fast it goes and what is kept, which changes nothing that is learnt.
WITHOUT_EFFECT = {
    "bf16", "packing", "kernels", "graphs", "torch_compile", "gradient_checkpointing",
    "logging_steps", "save_steps", "save_minutes", "save_total_limit", "report_to",
    "dataloader_num_workers",
}  # fmt: skip


def load_script() -> Any:
    spec = importlib.util.spec_from_file_location("faithful", ROOT / "docs" / "faithful.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SCRIPT = load_script()
RECIPES = SCRIPT.recipes()
PAGE = SCRIPT.PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", RECIPES)
def test_every_setting_has_a_source(name: str) -> None:
    recipe = RECIPES[name]
    told = [path for key in SCRIPT.sources(recipe) for path in key.split(", ")]
    for path in told:
        SCRIPT.value_of(recipe.own, path)  # there is such a setting
    silent = [
        path
        for path in SCRIPT.settings(recipe)
        if not any(path == one or path.startswith(f"{one}.") for one in told)
    ]
    assert not silent
    assert len(told) == len(set(told))


def test_the_page_has_a_table_of_each_and_is_as_written() -> None:
    assert sorted(found[2] for found in SCRIPT.BLOCK.finditer(PAGE)) == sorted(RECIPES)
    assert SCRIPT.written(PAGE) == PAGE, "python docs/faithful.py"


def pinned(name: str) -> dict[str, Any]:
    """What a section pins."""
    section = PAGE.partition(f"\n## {name}\n")[2]
    values: dict[str, Any] = {}
    for setting, ours in ROW.findall(section):
        value = plain_yaml.load(ours)
        for key in reversed(setting.split(".")):
            value = {key: value}
        values = merged(values, value)
    return values


def differences(page: dict[str, Any], code: dict[str, Any]) -> list[str]:
    one, other = dict(SCRIPT.leaves(page)), dict(SCRIPT.leaves(code))
    return [
        f"{path}: {one.get(path, 'no row')} on the page, {other.get(path, 'nothing')} in the code"
        for path in {**one, **other}
        if path not in one or path not in other or one[path] != other[path]
    ]


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
    unset = {path for path, value in SCRIPT.leaves(whole) if value is None}
    found = differences({name: page[name] for name in whole}, whole)
    assert not [one for one in found if "no row" not in one or one.partition(":")[0] not in unset]
    for name, settings in {"finetune": FinetuneSettings, "pretrain": PretrainSettings}.items():
        code = dict(SCRIPT.leaves(defaults(settings)))
        for path, value in SCRIPT.leaves(page[name]):
            assert code[path] == value, f"{name}.{path}"
    assert set(page) == {*whole, "finetune", "pretrain"}
