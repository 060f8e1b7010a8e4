"""Recipes: shipped ones assemble; flags and overrides win; what is wrong is explained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from isthmus.config import find_recipe, resolve, shipped_recipes
from isthmus.config.recipes import Recipe
from isthmus.errors import InputError, IsthmusError, SettingsError
from isthmus.finetune.settings import FinetuneSettings
from isthmus.finetune.stage import _source_of_negatives
from isthmus.pretrain.recipe import PretrainSettings, assemble

SHIPPED = [recipe for recipe in shipped_recipes() if recipe.verb != "quickstart"]


@pytest.mark.parametrize("recipe", SHIPPED, ids=lambda recipe: recipe.name)
def test_every_shipped_recipe_parses_and_assembles(recipe: Recipe) -> None:
    assert recipe.summary.endswith(".")
    if recipe.verb == "pretrain":
        flags = {"corpus": "c", "output": "o", "model": "m"}
        overrides = ["corruption.generator=g"] if recipe.name == "simlm" else []
        values = resolve("pretrain", recipe.name, flags, overrides)
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


PAPERS: dict[str, dict[str, Any]] = {
    "mlm": {},
    "mlm-term-frequency": {},
    "autoencoding": {"decoder": ("bidirectional", 1), "rates": (0.3, 0.5)},
    "autoregressive": {"decoder": ("autoregressive", None), "rates": (0.3, None)},
    "retromae": {"decoder": ("enhanced", None), "rates": (0.3, None)},
    "dupmae": {"decoder": ("enhanced", None), "rates": (0.3, None)},
    "cotmae": {"decoder": ("bidirectional", 2), "rates": (0.3, 0.45)},
    "cdmae": {"decoder": ("bidirectional", 2), "rates": (0.3, 0.5)},
    "lexmae": {"decoder": ("bidirectional", 2), "rates": (0.3, 0.5)},
    "lexmae-saturated": {"decoder": ("bidirectional", 2), "rates": (0.3, 0.5)},
    "condenser": {"decoder": ("condenser", 2), "rates": (0.15, None)},
    "cocondenser": {"decoder": ("condenser", 2), "rates": (0.15, None)},
    "simlm": {"decoder": ("bidirectional", 2), "rates": (0.3, 0.5)},
}


@pytest.mark.parametrize("name", PAPERS)
def test_decoders_and_rates_of_the_papers(name: str) -> None:
    overrides = ["corruption.generator=g"] if name == "simlm" else []
    flags = {"corpus": "c", "output": "o", "model": "m"}
    parts = assemble(PretrainSettings.parse(resolve("pretrain", name, flags, overrides), name))
    kind, layers = PAPERS[name].get("decoder", (None, None))
    encoder_rate, decoder_rate = PAPERS[name].get("rates", (0.3, None))
    assert parts.corruption is not None
    assert parts.corruption.settings.rate == encoder_rate
    if kind is None:
        assert not any((parts.decoder, parts.bottleneck, parts.decoder_corruption))
        return
    assert type(parts.decoder).__name__.lower() == kind
    assert parts.decoder is not None
    assert getattr(parts.decoder.settings, "layers", None) == layers
    if decoder_rate is None:
        assert parts.decoder_corruption is None
    else:
        assert parts.decoder_corruption is not None
        assert parts.decoder_corruption.settings.rate == decoder_rate
        assert parts.decoder_corruption.side == "decoder"


def recipe(**change: Any) -> PretrainSettings:
    """Auto-encoding, with something changed; None leaves a part out."""
    values = {
        "corpus": "c", "output": "o", "init": "tiny", "corruption": "uniform",
        "bottleneck": "cls", "decoder": "bidirectional",
        "decoder_corruption": {"name": "uniform", "rate": 0.5},
        "objectives": {"masked_lm": 1.0, "reconstruction": 1.0}, **change,
    }  # fmt: skip
    return PretrainSettings.parse(values, where="test")


REFUSED: list[tuple[dict[str, Any], str, str, str]] = [
    # change, where, a part of what, a part of allowed
    ({"decoder": None}, "objectives.reconstruction", "requires 'decoder_", "bidirectional"),
    ({"bottleneck": None}, "decoder", "requires 'bottleneck'", "lexicon"),
    ({"decoder_corruption": None}, "decoder", "'decoder_ids'", "decoder_corruption nested"),
    ({"corruption": None}, "objectives.masked_lm", "requires 'labels'", "corruption whole_word"),
    (
        {"decoder": None, "decoder_corruption": None, "objectives": {"masked_lm": 1}},
        "bottleneck", "is given, but nothing", "bottleneck",
    ),
    ({"objectives": {"masked_lm": 1}}, "decoder", "is given, but nothing", "decoder_logits"),
    ({"decoder": "enhanced"}, "decoder_corruption", "is given, but nothing", "decoder_ids"),
    ({"decoder": "autoregressive"}, "decoder_corruption", "is given, but nothing", "decoder_ids"),
    ({"decoder": "condenser"}, "decoder_corruption", "is given, but nothing", "decoder_ids"),
    (
        {"decoder": "condenser", "decoder_corruption": None, "corruption": None,
         "objectives": {"reconstruction": 1}},
        "decoder", "requires 'labels'", "corruption uniform",
    ),
    ({"corruption": "nested"}, "corruption", "works on the decoder's side only", "uniform"),
    (
        {
            "decoder_corruption": "nested",
            "corruption": {"name": "generator", "generator": "some/model"},
        },
        "decoder_corruption",
        "labels every token",
        "labels=chosen",
    ),
    (
        {"decoder_corruption": {"name": "nested", "rate": 0.2}},
        "decoder_corruption.rate", "0.2 is below the encoder's 0.3", "0.3 or more",
    ),
    (
        {"decoder_corruption": "nested", "corruption": None, "objectives": {"reconstruction": 1}},
        "decoder_corruption", "requires 'encoder_ids'", "corruption uniform",
    ),
    (
        {"objectives": {"masked_lm": 1, "reconstruction": 1, "span_contrast": 1}},
        "objectives.span_contrast", "requires 'pairs'", "view neighbours",
    ),
    ({"corruption": "generator"}, "corruption.generator", "is not set", "masked language model"),
    (
        {"decoder_corruption": "generator"},
        "decoder_corruption.generator", "is not set", "masked language model",
    ),
    (
        {"corruption": None, "objectives": {"replaced_token": 1, "reconstruction": 1}},
        "objectives.replaced_token", "requires 'encoder_ids'", "corruption generator",
    ),
    ({"decoder": {"name": "bidirectionnal"}}, "decoder", "'bidirectionnal'", "bidirectional"),
    ({"decoder": {"layers": 2}}, "decoder", "decoder has no name", "enhanced"),
    ({"bottleneck": {"name": "lexicon", "form": "soft"}}, "bottleneck", "form", "softmax"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "where", "what", "allowed"), REFUSED)
def test_what_cannot_work_is_refused_before_anything_is_loaded(
    change: dict[str, Any], where: str, what: str, allowed: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        assemble(recipe(**change))
    assert caught.value.where.startswith(where)
    assert what in caught.value.what
    assert allowed in caught.value.allowed
    assert caught.value.remedy


def test_what_can_work_is_not_refused() -> None:
    assemble(recipe())
    assemble(recipe(bottleneck="lexicon", decoder_corruption="nested"))
    assemble(recipe(decoder_corruption={"name": "nested", "rate": 0.3}))
    assemble(recipe(decoder_corruption="importance", corruption="importance"))
    assemble(recipe(decoder="enhanced", decoder_corruption=None, view="neighbours"))
    assemble(recipe(decoder="condenser", decoder_corruption=None, bottleneck="lexicon"))
    assemble(recipe(corruption={"name": "generator", "generator": "g"}))
    both = assemble(
        recipe(corruption={"name": "generator", "generator": "g"}, decoder_corruption="generator")
    )
    assert getattr(both.decoder_corruption, "name", None) == "g", "one generator for both sides"
    contrast = {"masked_lm": 1, "reconstruction": 1, "span_contrast": {"temperature": 0.5}}
    assemble(recipe(view={"name": "neighbours", "span": 64}, objectives=contrast))


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
    assert "dense" not in caught.value.allowed.split(", "), "another verb's"
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
