"""Recipes: shipped ones assemble; flags and overrides win; what is wrong is explained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from isthmus.config import find_recipe, resolve, shipped_recipes
from isthmus.config.recipes import Recipe, merged
from isthmus.encoders.dense import DenseSettings
from isthmus.encoders.sparse import SparseSettings
from isthmus.errors import InputError, IsthmusError, SettingsError
from isthmus.finetuning.stages import assemble as stages_of
from isthmus.pretraining.recipe import assemble
from isthmus.pretraining.settings import PretrainSettings
from isthmus.workflows.adapt import stages as adapt_stages
from isthmus.workflows.adapt_settings import AdaptSettings

SHIPPED = [recipe for recipe in shipped_recipes() if recipe.verb not in ("adapt", "quickstart")]


@pytest.mark.parametrize("recipe", shipped_recipes("adapt"), ids=lambda recipe: recipe.name)
@pytest.mark.parametrize("known", [DenseSettings(), SparseSettings()], ids=["dense", "sparse"])
def test_recipes_of_adapt_resolve_to_stages(recipe: Recipe, known: Any) -> None:
    flags = {"documents": "d", "output": "o", "model": "m", "train_on": "l"}
    values = resolve("adapt", recipe.name, flags)
    settings = AdaptSettings.parse(values, where=recipe.name)
    found = adapt_stages(settings, known).stages
    encoder = "sparse" if isinstance(known, SparseSettings) else "dense"
    assert {name: stage.settings.encoder for name, stage in found.items()} == {
        "adapted": encoder, "labelled": encoder,
    }  # fmt: skip
    assert found["labelled"].settings.pseudo_queries is None
    assert found["labelled"].settings.collection == "l"


@pytest.mark.parametrize("recipe", SHIPPED, ids=lambda recipe: recipe.name)
def test_every_shipped_recipe_parses_and_assembles(recipe: Recipe) -> None:
    assert recipe.summary.endswith(".")
    if recipe.verb == "pretrain":
        flags = {"documents": "c", "output": "o", "model": "m"}
        overrides = ["corruption.generator=g"] if recipe.name == "simlm" else []
        values = resolve("pretrain", recipe.name, flags, overrides)
        assemble(PretrainSettings.parse(values, where=recipe.name))
    else:
        assert recipe.verb == "finetune"
        flags = {"collection": "c", "output": "o", "model": "m"}
        values = resolve("finetune", recipe.name, flags)
        stages_of(values, recipe.name)


def recipe(**change: Any) -> PretrainSettings:
    """Auto-encoding, with something changed; None leaves a part out."""
    values = {
        "documents": "c", "output": "o", "model": "scratch:tiny", "corruption": "uniform",
        "bottleneck": "cls", "decoder": "bidirectional",
        "decoder_corruption": {"name": "uniform", "rate": 0.5},
        "objectives": {"masked_lm": 1.0, "reconstruction": 1.0}, **change,
    }  # fmt: skip
    return PretrainSettings.parse(values, where="test")


REFUSED: list[tuple[dict[str, Any], str, str, str]] = [
    # change, parts of what, a part of the error
    ({"decoder": None}, "objectives.reconstruction", "requires 'decoder_", "bidirectional"),
    ({"bottleneck": None}, "decoder", "requires 'bottleneck'", "lexicon"),
    ({"decoder_corruption": None}, "decoder", "'decoder_ids'", "decoder_corruption nested"),
    ({"corruption": None}, "objectives.masked_lm", "requires 'labels'", "corruption whole_word"),
    (
        {"decoder": None, "decoder_corruption": None, "objectives": {"masked_lm": 1}},
        "bottleneck", "is given, but nothing", "bottleneck",
    ),
    ({"objectives": {"masked_lm": 1}}, "decoder", "is given, but nothing", "objective"),
    ({"decoder": "enhanced"}, "decoder_corruption", "is given, but nothing", ""),
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
        "decoder_corruption.rate", "0.2 is below the encoder's 0.3", "rate=0.5",
    ),
    (
        {"objectives": {"masked_lm": 1, "reconstruction": 1, "span_contrast": 1}},
        "objectives.span_contrast", "requires 'pairs'", "view neighbours",
    ),
    (
        {"corruption": "importance",
         "decoder_corruption": {"name": "importance", "minimum_count": 3}},
        "decoder_corruption.minimum_count", "3, and corruption.minimum_count = 1", "share one",
    ),
    ({"decoder": {"name": "bidirectionnal"}}, "decoder", "'bidirectionnal'", "bidirectional"),
    ({"bottleneck": {"name": "lexicon", "form": "soft"}}, "bottleneck", "form", "softmax"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "where", "what", "allowed"), REFUSED)
def test_what_cannot_work_is_refused_before_anything_is_loaded(
    change: dict[str, Any], where: str, what: str, allowed: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        assemble(recipe(**change))
    assert where in caught.value.what
    assert what in caught.value.what
    assert allowed in str(caught.value)
    assert caught.value.fix


def test_settings_that_only_training_needs() -> None:
    without = recipe(corruption="generator")
    parts = assemble(without)  # as what only shows masks does
    assert parts.corruption is not None
    with pytest.raises(SettingsError, match=r"^corruption\.generator is not set"):
        parts.corruption.data()


def test_a_mapping_inside_a_mapping_is_merged_and_one_of_set_replaces() -> None:
    recipe = resolve("pretrain", "bow")["training"]
    nested = resolve("pretrain", "bow", overrides={"training": {"seed": 7}})["training"]
    assert nested == {**recipe, "seed": 7} != {"seed": 7}
    assert resolve("pretrain", "bow", overrides={"training.seed": 7})["training"] == nested
    assert resolve("pretrain", "bow", overrides=["training={seed: 7}"])["training"] == {"seed": 7}
    other = {"corruption": {"name": "nested", "rate": 0.4}}  # a part with settings of its own
    assert resolve("pretrain", "bow", overrides=other)["corruption"] == other["corruption"]


def test_recipe_then_flags_then_overrides() -> None:
    values = resolve(
        "pretrain",
        "mlm",
        {"documents": "flag", "output": None},
        [
            "documents=override",
            "training.learning_rate=1e-4",
            "corruption.rate=.15",
            "model=scratch:tiny",
        ],
    )
    assert values["documents"] == "override"
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
    assert f"--set {override!r} is not PATH=VALUE" in caught.value.what
    assert "--set" in caught.value.what


def test_a_recipe_that_does_not_exist() -> None:
    with pytest.raises(SettingsError) as caught:
        find_recipe("bwo", "pretrain")
    assert "there is no recipe named 'bwo'" in caught.value.what
    assert caught.value.expected.split(", ")[0] == "bow"
    assert "dense" not in caught.value.expected.split(", "), "another verb's"
    with pytest.raises(InputError) as missing:
        find_recipe("no/such.yaml", "pretrain")
    assert "there is no recipe file 'no/such.yaml'" in missing.value.what
    assert "bow" in missing.value.expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("verb: pretrain\nsetings: {}", "unknown key 'setings'"),
        ("verb: pretrain", "has no 'settings'"),
        ("settings: {}", "has no 'verb'"),
        ("verb: pretrain\nsettings: [a, b]", "settings = ['a', 'b'] is not a mapping"),
        ("- a\n- b", "is not a mapping"),
        ("verb: [", "is not valid YAML"),
        (b"verb: \xff\xfe", "is not valid YAML"),
    ],
)
def test_files_that_are_no_recipes(text: str | bytes, message: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(IsthmusError) as caught:
        find_recipe(str(file), "pretrain")
    assert message in caught.value.what
    assert str(file) in caught.value.what


def test_a_users_own_recipe(tmp_path: Path) -> None:
    file = tmp_path / "mine.yml"
    file.write_text("verb: pretrain\nsettings:\n  max_length: 99\n")
    assert resolve("pretrain", str(file)) == {"max_length": 99}
    empty = tmp_path / "empty.yaml"
    empty.write_text("verb: pretrain\nsettings:\n")
    assert resolve("pretrain", str(empty)) == {}


def write(folder: Path, name: str, text: str) -> str:
    file = folder / f"{name}.yaml"
    file.write_text(f"verb: finetune\n{text}")
    return str(file)


def test_a_recipe_builds_on_others(tmp_path: Path) -> None:
    first = "settings: {a: 1, training: {x: 1, y: 1}, part: {name: bm25, k: 3}, kept: [1, 2]}"
    write(tmp_path, "first", first)
    write(tmp_path, "second", "base: first.yaml\nsettings: {training: {y: 2}, part: {k: 4}}")
    third = write(
        tmp_path, "third", "base: second.yaml\nsettings: {a: null, part: {name: run, file: f}}"
    )
    assert resolve("finetune", third) == {
        "a": None, "training": {"x": 1, "y": 2}, "part": {"name": "run", "file": "f"},
        "kept": [1, 2],
    }  # fmt: skip
    assert resolve("finetune", str(tmp_path / "second.yaml"))["part"] == {"name": "bm25", "k": 4}
    assert resolve("finetune", third, overrides=["part.k=9"])["part"]["k"] == 9


def test_a_base_may_be_a_shipped_recipe(tmp_path: Path) -> None:
    mine = write(tmp_path, "mine", "base: dense\nsettings: {temperature: 0.5}")
    assert resolve("finetune", mine) == {**resolve("finetune", "dense"), "temperature": 0.5}


def test_a_part_by_its_name_alone_gains_settings_of_the_recipe_above() -> None:
    assert merged({"part": "bm25"}, {"part": {"k": 1}}) == {"part": {"name": "bm25", "k": 1}}
    assert merged({"part": "bm25"}, {"part": {"name": "run"}}) == {"part": {"name": "run"}}
    assert merged({"part": {"name": "bm25", "k": 1}}, {"part": "run"}) == {"part": "run"}


def test_merging_changes_neither_side() -> None:
    below: dict[str, Any] = {"a": {"list": [{"x": 1}]}}
    above: dict[str, Any] = {"b": {"c": 1}}
    found = merged(below, above)
    found["a"]["list"][0]["x"] = 2
    found["b"]["c"] = 2
    assert (below, above) == ({"a": {"list": [{"x": 1}]}}, {"b": {"c": 1}})


def test_recipes_that_build_on_what_is_not_there(tmp_path: Path) -> None:
    lost = write(tmp_path, "lost", "base: dens\nsettings: {}")
    with pytest.raises(SettingsError, match="there is no recipe named 'dens'") as caught:
        resolve("finetune", lost)
    assert f"{lost}: base" in caught.value.what
    assert caught.value.expected.startswith("dense")
    with pytest.raises(SettingsError, match="'bow' is for `isthmus pretrain`"):
        resolve("finetune", write(tmp_path, "other", "base: bow\nsettings: {}"))
    write(tmp_path, "one", "base: two.yaml\nsettings: {}")
    two = write(tmp_path, "two", "base: one.yaml\nsettings: {}")
    with pytest.raises(SettingsError, match="builds on itself: two → one → two"):
        resolve("finetune", two)


def test_an_override_of_a_member_of_a_list() -> None:
    given = ["negatives=[{name: a, k: 1}, b]"]
    found = resolve("finetune", None, {}, [*given, "negatives.0.k=7", "negatives.1.k=2"])
    assert found["negatives"] == [{"name": "a", "k": 7}, {"name": "b", "k": 2}]
    for path in ("negatives.2.k", "negatives.k"):
        with pytest.raises(SettingsError, match="goes through 'negatives', a list of 2") as caught:
            resolve("finetune", None, {}, [*given, f"{path}=7"])
        assert caught.value.expected == "negatives.0, negatives.1"
