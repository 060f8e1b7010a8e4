"""Strict settings: what is misspelt, of a wrong type or impossible is named and explained."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import Field

from isthmus.config import Settings
from isthmus.errors import SettingsError
from isthmus.finetuning.settings import FinetuneSettings
from isthmus.pretraining.recipe import assemble
from isthmus.pretraining.settings import PretrainSettings
from isthmus.training.settings import TrainingSettings

PRETRAIN: dict[str, Any] = {
    "documents": "docs.jsonl",
    "output": "runs/x",
    "model": "scratch:tiny",
    "corruption": {"name": "uniform", "rate": 0.3},
    "objectives": {"masked_lm": {"weight": 1.0}},
}


def refusal(change: dict[str, Any]) -> SettingsError:
    values = {**PRETRAIN, **change}
    values = {key: value for key, value in values.items() if value is not ...}
    with pytest.raises(SettingsError) as caught:
        assemble(PretrainSettings.parse(values, where="recipe mine.yaml"))
    assert caught.value.what
    assert caught.value.fix
    return caught.value


@pytest.mark.parametrize(
    ("change", "key", "first"),
    [
        ({"documnets": "x"}, "documnets", "documents"),
        ({"training": {"learing_rate": 1e-4}}, "training.learing_rate", "learning_rate"),
        ({"objectives": {"masked_lm": {"wieght": 1.0}}}, "objectives.masked_lm.wieght", "weight"),
    ],
)
def test_misspelt_keys(change: dict[str, Any], key: str, first: str) -> None:
    error = refusal(change)
    assert f"unknown key {key!r}" in error.what
    assert error.expected.split(",")[0] == first
    assert key.rpartition(".")[2] in error.what


@pytest.mark.parametrize(
    ("change", "what", "allowed"),
    [
        ({"max_length": "long"}, "max_length = 'long'", "int: "),
        ({"titles": "yes"}, "titles = 'yes'", "bool: "),
        ({"training": {"learning_rate": "fast"}}, "training.learning_rate = 'fast'", "float: "),
        ({"training": {"bf16": "yes"}}, "training.bf16 = 'yes'", "bool or auto: "),
        ({"training": {"max_steps": "x"}}, "max_steps = 'x'", "int or null: "),
        ({"training": 3}, "training = 3", "a mapping with the keys per_device"),
        ({"corruption": {"name": "uniform", "rate": 2}}, "corruption.rate = 2", "float: share"),
        ({"objectives": {"bag_of_words": {"vector": "sum"}}}, "vector = 'sum'", "cls, max, mean"),
        ({"objectives": {"masked_lm": False}}, "objectives = {}", "mapping"),
        ({"corruption": {"rate": 0.3}}, "corruption has no name", "generator, importance"),
    ],
)  # fmt: skip
def test_wrong_values(change: dict[str, Any], what: str, allowed: str) -> None:
    error = refusal(change)
    assert what in error.what
    assert error.expected.startswith(allowed)


def test_nothing_is_converted_behind_ones_back() -> None:
    for values in ({"seed": "42"}, {"seed": 42.0}, {"gradient_checkpointing": 1}):
        with pytest.raises(SettingsError):
            TrainingSettings.parse(values, "test")
    assert TrainingSettings.parse({"learning_rate": 1}, "test").learning_rate == 1.0


def test_a_missing_key() -> None:
    error = refusal({"documents": ...})
    assert "'documents' is missing" in error.what
    assert error.expected == ("str: Documents to train on: a path, beir:PATH, hf:NAME, irds:ID, …")
    assert "--set documents=…" in error.fix
    assert "(and 1 more)" in refusal({"documents": ..., "output": ...}).what


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "scratch:tinny"}, "no size 'tinny'"),
        ({"training": {"min_lr_rate": 0.1}}, "min_lr_rate and lr_scheduler_type"),
        ({"corruption": {"name": "uniform", "mask_share": 0.9, "random_share": 0.2}}, "exceed 1"),
    ],
)  # fmt: skip
def test_values_that_disagree(change: dict[str, Any], message: str) -> None:
    assert message in refusal(change).what


def test_short_forms_are_the_long_ones() -> None:
    short = PretrainSettings.parse(
        {**PRETRAIN, "view": "same", "corruption": "uniform", "objectives": {"masked_lm": None}},
        where="test",
    )
    assert short.view == {"name": "same"}
    assert short.corruption == {"name": "uniform"}
    assert assemble(short).objectives["masked_lm"].settings.weight == 1.0
    base = {"model": "m", "collection": "c", "output": "o", "negatives": "bm25"}
    assert FinetuneSettings.parse(base, where="test").negatives == {"name": "bm25"}


class Inner(Settings):
    amount: int = Field(1, ge=1)


class Outer(Settings):
    verb = "search"

    depth: int = 10
    inner: Inner | None = None


@pytest.mark.parametrize(
    "given",
    [
        Outer(depth=3, inner=Inner(amount=2)),
        {"depth": 3, "inner": {"amount": 2}},
        {"depth": 3, "inner.amount": 2},
        {"depth": 3, "inner": Inner(amount=2)},
    ],
)
def test_a_function_takes_settings_or_a_mapping_of_them(given: Any) -> None:
    assert Outer.given(given) == Outer(depth=3, inner=Inner(amount=2))
    assert Outer.given(None) == Outer.given({}) == Outer()
