"""Recipes: shipped ones assemble; flags and overrides win; what is wrong is explained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from isthmus.config import find_recipe, resolve, shipped_recipes
from isthmus.config.recipes import Recipe
from isthmus.errors import InputError, IsthmusError, SettingsError
from isthmus.finetune.finetune import _source_of_negatives
from isthmus.finetune.settings import FinetuneSettings
from isthmus.pretrain.recipe import PretrainSettings, assemble

SHIPPED = [recipe for recipe in shipped_recipes() if recipe.verb != "quickstart"]


@pytest.mark.parametrize("recipe", SHIPPED, ids=lambda recipe: recipe.name)
def test_every_shipped_recipe_parses_and_assembles(recipe: Recipe) -> None:
    assert recipe.summary.endswith(".")
    if recipe.verb == "pretrain":
        flags = {"corpus": "c", "output": "o", "model": "m"}
        values = resolve("pretrain", recipe.name, flags)
        assemble(PretrainSettings.parse(values, where=recipe.name))
    else:
        assert recipe.verb == "finetune"
        flags = {"collection": "c", "output": "o", "model": "m"}
        settings = FinetuneSettings.parse(resolve("finetune", recipe.name, flags), recipe.name)
        assert _source_of_negatives(settings).settings.num_negatives >= 1


def test_the_recipes_of_the_papers_say_what_the_papers_say() -> None:
    flags = {"corpus": "c", "output": "o", "model": "m"}
    bow = PretrainSettings.parse(resolve("pretrain", "bow", flags), "bow")
    assert set(bow.objectives) == {"masked_lm", "bag_of_words"}
    assert bow.corruption == {"name": "uniform", "rate": 0.30}
    training = bow.training
    assert training.per_device_train_batch_size * training.gradient_accumulation_steps == 2048
    assert (training.learning_rate, training.weight_decay) == (3e-4, 0.01)
    assert (training.lr_scheduler_type, training.min_lr_rate) == ("cosine_with_min_lr", 0.1)
    dense = FinetuneSettings.parse(
        resolve("finetune", "dense", {"collection": "c", "output": "o", "model": "m"}), "dense"
    )
    assert (dense.pooling, dense.similarity, dense.temperature) == ("cls", "dot", 1.0)
    assert dense.negatives == {"name": "bm25", "num_negatives": 15, "range_max": 1000}


def test_recipe_then_flags_then_overrides() -> None:
    values = resolve(
        "pretrain",
        "mlm",
        {"corpus": "flag", "output": None},
        ["corpus=override", "training.learning_rate=1e-4", "corruption.rate=.15", "init=tiny"],
    )
    assert values["corpus"] == "override"
    assert "output" not in values, "a flag that was not given"
    assert values["training"]["learning_rate"] == 1e-4
    assert values["training"]["num_train_epochs"] == 20, "what is not overridden stays"
    assert values["corruption"] == {"name": "uniform", "rate": 0.15}
    again = resolve("pretrain", "mlm")
    assert again["corruption"]["rate"] == 0.30, "a shipped recipe is not changed by its users"
    same = resolve("pretrain", "mlm", {}, {"training.learning_rate": 1e-4})
    assert same["training"]["learning_rate"] == 1e-4


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-4", 1e-4), ("3", 3), ("0.5", 0.5), ("true", True), ("null", None), ("word", "word"),
        ("[a, b]", ["a", "b"]), ("{name: bm25}", {"name": "bm25"}), ("'1e-4'", "1e-4"),
        ("a=b", "a=b"), ("", None), ("-2E+3", -2000.0), ("beir:data/x", "beir:data/x"),
    ],
)  # fmt: skip
def test_the_right_side_of_an_override_is_yaml(text: str, value: Any) -> None:
    assert resolve("pretrain", overrides=[f"key={text}"]) == {"key": value}


def test_a_part_chosen_by_name_alone_gains_settings() -> None:
    found = resolve("pretrain", overrides=["corruption=whole_word", "corruption.rate=0.5"])
    assert found == {"corruption": {"name": "whole_word", "rate": 0.5}}


@pytest.mark.parametrize("override", ["training.learning_rate", "=3", " =3", ""])
def test_an_override_without_path_or_value(override: str) -> None:
    with pytest.raises(SettingsError) as caught:
        resolve("pretrain", overrides=[override])
    assert caught.value.what == f"{override!r} is not an override"
    assert caught.value.where == "--set"
    assert caught.value.remedy == "write --set PATH=VALUE"


def test_an_override_that_is_no_yaml() -> None:
    with pytest.raises(SettingsError, match="is not a YAML value") as caught:
        resolve("pretrain", overrides=["a=[1"])
    assert caught.value.where == "--set a=[1"


def test_an_override_through_a_number() -> None:
    with pytest.raises(SettingsError) as caught:
        resolve("pretrain", "mlm", overrides=["max_length.training=3"])
    assert caught.value.what == "'max_length.training' goes through 'max_length', which holds 144"
    assert caught.value.where == "--set max_length.training"


def test_a_recipe_that_does_not_exist() -> None:
    with pytest.raises(SettingsError) as caught:
        find_recipe("bwo", "pretrain")
    assert caught.value.what == "there is no recipe named 'bwo'"
    assert caught.value.allowed.split(", ")[0] == "bow"
    assert "dense" not in caught.value.allowed, "another verb's"
    with pytest.raises(InputError) as missing:
        find_recipe("no/such.yaml", "pretrain")
    assert "there is no recipe file 'no/such.yaml'" in missing.value.what
    assert "bow" in missing.value.allowed


def test_a_recipe_for_another_verb() -> None:
    with pytest.raises(SettingsError) as caught:
        find_recipe("dense", "pretrain")
    assert caught.value.what == (
        "the recipe 'dense' is for `isthmus finetune`, not `isthmus pretrain`"
    )
    assert "bow" in caught.value.allowed
    assert caught.value.remedy.startswith("run `isthmus finetune --recipe dense`")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("verb: pretrain\nsetings: {}", "unknown key 'setings'"),
        ("verb: pretrain\n1: {}", "unknown key 1"),
        ("verb: pretrain", "the recipe has no 'settings'"),
        ("settings: {}", "the recipe has no 'verb'"),
        ("verb: pretrain\nsettings: [a, b]", "settings = ['a', 'b'] is not a mapping"),
        ("verb: pretrain\nsettings: text", "settings = 'text' is not a mapping"),
        ("- a\n- b", "the recipe is not a mapping"),
        ("", "the recipe is not a mapping"),
        ("verb: [", "the recipe is not valid YAML"),
        (b"verb: \xff\xfe", "the recipe is not valid YAML"),
        ("verb: !!python/object/apply:os.getcwd []", "the recipe is not valid YAML"),
    ],
)
def test_files_that_are_no_recipes(text: str | bytes, message: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(IsthmusError) as caught:
        find_recipe(str(file), "pretrain")
    assert message in caught.value.what
    assert caught.value.where == str(file)


def test_a_users_own_recipe(tmp_path: Path) -> None:
    file = tmp_path / "mine.yml"
    file.write_text("verb: pretrain\nsettings:\n  max_length: 99\n")
    assert resolve("pretrain", str(file)) == {"max_length": 99}
    empty = tmp_path / "empty.yaml"
    empty.write_text("verb: pretrain\nsettings:\n")
    assert resolve("pretrain", str(empty)) == {}
