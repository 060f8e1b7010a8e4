"""Recipes: shipped ones assemble; flags and overrides win; what is wrong is explained."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from isthmus.config import find_recipe, resolve, shipped_recipes
from isthmus.config.recipes import PROTOCOL_VERB, Recipe, merged
from isthmus.encoders.dense import DenseSettings
from isthmus.encoders.sparse import SparseSettings
from isthmus.errors import InputError, IsthmusError, SettingsError
from isthmus.finetuning import pipeline
from isthmus.finetuning.resolved import resolve_stage
from isthmus.finetuning.settings import FinetuneSettings
from isthmus.pretraining.recipe import assemble
from isthmus.pretraining.settings import PretrainSettings
from isthmus.workflows.adapt import stages as adapt_stages
from isthmus.workflows.adapt_settings import AdaptSettings

EXPERIMENTS = Path(__file__).parents[3] / "experiments"
PROTOCOLS = Path(__file__).parents[3] / "src" / "isthmus" / "protocols" / "recipes"
SHIPPED = [recipe for recipe in shipped_recipes() if recipe.verb not in ("adapt", "quickstart")]


@pytest.mark.parametrize("recipe", shipped_recipes("adapt"), ids=lambda recipe: recipe.name)
@pytest.mark.parametrize("known", [DenseSettings(), SparseSettings()], ids=["dense", "sparse"])
def test_recipes_of_adapt_resolve_to_stages(recipe: Recipe, known: Any) -> None:
    flags = {"documents": "d", "output": "o", "model": "m", "labels": "l"}
    values = resolve("adapt", recipe.name, flags)
    settings = AdaptSettings.parse(values, where=recipe.name)
    for stage in adapt_stages(settings, known, "m").values():
        assert resolve_stage(stage).settings.encoder == stage.encoder


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
        values = resolve("finetune", recipe.name, flags)
        if "stages" in values:
            pipeline.assemble(values, recipe.name)
        else:
            resolve_stage(FinetuneSettings.parse(values, recipe.name))


@pytest.mark.parametrize(
    "file",
    [*sorted(EXPERIMENTS.glob("*.yaml")), *sorted(PROTOCOLS.glob("*.yaml"))],
    ids=lambda file: file.stem,
)
def test_the_recipes_of_experiments_and_protocols_still_work(file: Path) -> None:
    flags = {"model": "m", "output": "o"}
    if Recipe(file).verb == "pretrain":
        values = resolve("pretrain", str(file), {**flags, "corpus": "c"})
        assemble(PretrainSettings.parse(values, str(file)))
        return
    staged = "stages" in Recipe(file).settings
    teacher = ["stages.distilled.teacher.model=t"] if staged else []
    values = resolve("finetune", str(file), {**flags, "collection": "c"}, teacher)
    if staged:
        pipeline.assemble(values, str(file))
    else:
        resolve_stage(FinetuneSettings.parse(values, str(file)))


def numbers(node: yaml.Node) -> Iterator[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        for _, value in node.value:
            yield from numbers(value)
    elif isinstance(node, yaml.SequenceNode):
        for value in node.value:
            yield from numbers(value)
    elif re.fullmatch(r"[-+]?[\d.]+(e[-+]?\d+)?", node.value):
        yield node


@pytest.mark.parametrize("recipe", shipped_recipes("pretrain"), ids=lambda recipe: recipe.name)
def test_every_number_says_where_it_comes_from(recipe: Recipe) -> None:
    """On its line, above it in its block, or for the whole recipe on the line of `settings:`."""
    text = recipe.file.read_text(encoding="utf-8")
    lines = text.splitlines()
    root = yaml.compose(text)
    ((top, settings),) = (pair for pair in root.value if pair[0].value == "settings")
    found = 0
    for key, value in settings.value:
        opening = key.start_mark.line
        if lines[opening - 1].lstrip().startswith("#"):  # a line of its own above the block
            opening -= 1
        for number in numbers(value):
            line = number.start_mark.line
            above = [lines[top.start_mark.line], *lines[opening : line + 1]]
            assert "#" in "".join(above), f"{recipe.file}:{line + 1}: {number.value}"
            found += 1
    assert found > 5


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


def stages(name: str) -> dict[str, FinetuneSettings]:
    flags = {"collection": "c", "output": "o", "model": "m"}
    found = pipeline.assemble(resolve("finetune", name, flags), name).stages
    return {name: stage.settings for name, stage in found.items()}


# Of each stage: queries a step, negatives, the deepest rank, epochs, learning rate.
RETRIEVERS: dict[str, dict[str, list[Any]]] = {
    "three-stage": {
        "bm25": [64, 15, 1000, 3, 2e-5], "mined": [64, 15, 200, 3, 2e-5],
        "reranker": [64, 15, 200, 3, 3e-5], "distilled": [64, 15, 200, 3, 2e-5],
    },
    "bow-retriever": {"bm25": [64, 15, 1000, 3, 2e-5], "mined": [64, [8, 7], [200, 1000], 3, 2e-5]},
    "cotmae-retriever": {
        "bm25": [64, 15, 1000, 3, 2e-5], "mined": [64, [8, 7], [200, 1000], 4, 2e-5],
    },
    "cdmae-retriever": {
        "bm25": [64, 31, 1000, 3, 2e-5], "mined": [64, 31, 200, 3, 2e-5],
        "reranker": [8, 63, 200, 3, 3e-5], "distilled": [32, 63, 200, 3, 2e-5],
    },
    "lexmae-retriever": {
        "bm25": [24, 15, 1000, 3, 2e-5], "mined": [24, 15, 200, 3, 2e-5],
        "reranker": [24, 15, 200, 3, 3e-5], "distilled": [16, 23, 200, 3, 2e-5],
    },
}  # fmt: skip


@pytest.mark.parametrize("name", RETRIEVERS)
def test_stages_of_the_papers(name: str) -> None:
    found = stages(name)
    assert list(found) == list(RETRIEVERS[name])
    for stage_name, settings in found.items():
        size, *of_negatives, epochs, rate = RETRIEVERS[name][stage_name]
        training = settings.training
        assert training.per_device_train_batch_size == size
        assert (training.num_train_epochs, training.learning_rate) == (epochs, rate)
        chosen = settings.negatives
        keys = ("num_negatives", "range_max")
        if isinstance(chosen, list):
            assert [[source[key] for source in chosen] for key in keys] == of_negatives
        else:
            assert chosen is not None
            assert [chosen[key] for key in keys] == of_negatives
    if "distilled" in found:
        assert found["distilled"].losses == {"kl": {"weight": 1.0}, "contrastive": {"weight": 0.2}}
        assert found["distilled"].teacher == {"name": "cross_encoder", "model": "stage:reranker"}


def test_flops_of_lexmae_by_stage() -> None:
    found = stages("lexmae-retriever")
    for name, weight in (("bm25", 0.002), ("mined", 0.008), ("distilled", 0.008)):
        assert found[name].regularizers == {
            "flops": {"documents": weight, "queries": pytest.approx(0.75 * weight)}
        }
        assert (found[name].encoder, found[name].sparse.form) == ("sparse", "lexmae")
    assert found["reranker"].encoder == "cross"
    assert not found["reranker"].regularizers


@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize(("negatives", "length", "loss"), [(1, 256, "margin_mse"), (32, 128, "kl")])
def test_the_four_protocols(kind: str, negatives: int, length: int, loss: str) -> None:
    for distilled in (False, True):
        name = f"benchmark-{kind}-{negatives}" + ("-distilled" if distilled else "")
        flags = {"collection": "c", "output": "o", "model": "m"}
        file = str(PROTOCOLS / f"{name}.yaml")
        settings = FinetuneSettings.parse(resolve("finetune", file, flags), name)
        assert settings.encoder == kind
        assert settings.query_max_length == settings.document_max_length == length
        assert isinstance(settings.negatives, dict)
        assert settings.negatives["num_negatives"] == negatives
        assert settings.training.learning_rate == 2e-5
        assert (settings.teacher is not None) == distilled
        assert set(settings.losses) == {"contrastive"} | ({loss} if distilled else set())
        assert bool(settings.regularizers) == (kind == "sparse")
        assert (settings.start_terms is None) == (kind == "sparse")


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
    ({"objectives": {"masked_lm": 1}}, "decoder", "is given, but nothing", "decoder_features"),
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
    (
        {"corruption": {"name": "importance", "statistics": "elsewhere"},
         "decoder_corruption": "importance"},
        "decoder_corruption.statistics", "None, and corruption.statistics = 'else", "the same",
    ),
    (
        {"corruption": "importance",
         "decoder_corruption": {"name": "importance", "minimum_count": 3}},
        "decoder_corruption.minimum_count", "3, and corruption.minimum_count = 1", "the same",
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


def test_a_part_without_use_names_what_would_use_it() -> None:
    with pytest.raises(SettingsError, match="nothing in this recipe uses") as caught:
        assemble(recipe(objectives={"masked_lm": 1}))
    assert caught.value.where == "decoder"
    assert caught.value.remedy.endswith(
        "add what uses it: objective decoder_detection, objective reconstruction"
    )


def test_settings_that_only_training_needs() -> None:
    without = recipe(corruption="generator")
    parts = assemble(without, to_train=False)
    assert parts.corruption is not None
    assert str(parts.corruption.lack()).startswith("corruption.generator is not set")
    named = assemble(recipe(corruption={"name": "generator", "generator": "g"}))
    assert [part.lack() for part in named] == [None] * len(list(named))


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


def test_a_protocol_that_does_not_exist() -> None:
    with pytest.raises(
        SettingsError, match="there is no protocol named 'pretraining-smal'"
    ) as caught:
        find_recipe("pretraining-smal", PROTOCOL_VERB)
    assert caught.value.where == "PROTOCOL"
    assert "`isthmus list protocols`" in caught.value.remedy


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
        ("verb: pretrain\n1: {}", "a key that is no name"),
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
    assert caught.value.where == f"{lost}: base"
    assert caught.value.allowed.startswith("dense")
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
        assert caught.value.allowed == "negatives.0, negatives.1"
