"""Losses say what they need by their parameters; a stage that cannot give it is refused."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from isthmus.config import resolve
from isthmus.errors import SettingsError
from isthmus.finetuning.losses import losses, outweighed_batch
from isthmus.finetuning.registries import LOSSES
from isthmus.finetuning.regularizers import regularizers
from isthmus.finetuning.settings import FinetuneSettings
from isthmus.finetuning.stages import resolve_stage
from isthmus.pretraining.settings import PretrainSettings

EVERYTHING = {"scores", "targets", "group", "teacher", "passages", "start_passages"}
FLAGS = {"collection": "no/such/collection", "output": "o", "model": "m"}
NEGATIVES = {"negatives": {"name": "bm25"}}
TEACHER = {"teacher": {"name": "cross_encoder", "model": "no/such/model"}}


def settings(**more: Any) -> FinetuneSettings:
    return FinetuneSettings.parse({**resolve("finetune", None, FLAGS), **more}, "test")


def test_every_loss_can_be_had_and_says_what_it_needs() -> None:
    chosen = losses({name: {} for name in LOSSES.names()}, EVERYTHING)
    found = {loss.name: set(loss.needs) for loss in chosen}
    assert found == {
        "contrastive": {"scores", "targets"},
        "keep": {"passages", "start_passages"},
        "kl": {"group", "teacher"},
        "listwise": {"group"},
        "margin_mse": {"group", "teacher"},
    }


def test_a_loss_gets_what_it_needs_by_name() -> None:
    (margin,) = losses({"margin_mse": {}}, EVERYTHING)
    given = {"teacher": torch.tensor([[1.0, 0.0]]), "group": torch.tensor([[5.0, 1.0]]), "x": None}
    assert margin(given).tolist() == [9.0]  # type: ignore[arg-type]


def test_the_usual_loss_of_each_kind_is_written_down() -> None:
    def written(**more: Any) -> dict[str, Any]:
        return resolve_stage(settings(**NEGATIVES, **more)).written.losses

    assert written() == written(encoder="sparse") == {"contrastive": {}}
    assert written(encoder="cross") == {"listwise": {}}
    chosen = {"contrastive": None, "listwise": {}}
    assert written(losses=chosen) == chosen, "and not added to a choice"


def test_null_leaves_out_what_a_recipe_chose() -> None:
    chosen = losses({"contrastive": None, "listwise": {"weight": 0.3}}, EVERYTHING)
    assert [(loss.name, loss.settings.weight) for loss in chosen] == [("listwise", 0.3)]
    ways: list[tuple[str, Callable[[Any], Any]]] = [
        ("contrastiv", partial(losses, given=EVERYTHING)),
        ("L1", regularizers),
    ]
    for name, choose in ways:
        with pytest.raises(SettingsError, match=f"no .* {name!r}"):
            choose({name: None})
    flags = {"documents": "c", "output": "o", "model": "m"}
    values = resolve("pretrain", "bow", flags, ["objectives.bagofwords=false"])
    with pytest.raises(SettingsError, match="'bagofwords'"):
        PretrainSettings.parse(values, "test")


@pytest.mark.parametrize(
    ("values", "what", "allowed"),
    [
        ({"losses": {"kl": {}}, **NEGATIVES}, "losses.kl needs a teacher's", "contrastive"),
        ({"losses": {"kl": {}}, **TEACHER}, "losses.kl needs negatives", "contrastive"),
        (
            {"encoder": "cross", "losses": {"contrastive": {}}, **NEGATIVES},
            "losses.contrastive needs scores of the whole batch",
            "listwise",
        ),
        ({"losses": {"kld": {}}}, "'kld'", "kl"),
        ({"encoder": "dens"}, "'dens'", "dense"),
        ({"losses": {"kl": {"wieght": 1}}}, "'losses.kl.wieght'", "weight"),
        ({"losses": {"contrastive": {"weight": -1.0}}}, "losses.contrastive.weight = -1.0", ""),
        ({"losses": {"contrastive": {"weight": 0.0}}}, "no loss is trained on", "contrastive"),
        ({**NEGATIVES, **TEACHER}, "is not used: no loss learns from it", ""),
        ({**NEGATIVES, "losses": {"kl": {}}, "teacher": "scores"}, "'teacher.file'", ""),
    ],
)
def test_what_cannot_be_learnt_is_refused_before_data_is_read(
    values: dict[str, Any], what: str, allowed: str
) -> None:
    with pytest.raises(SettingsError) as caught:  # not the missing collection's error
        resolve_stage(settings(**values))
    assert what in caught.value.what
    assert allowed in caught.value.expected
    assert caught.value.fix


@pytest.mark.parametrize(
    ("chosen", "group", "told"),
    [
        ({"kl": {}, "contrastive": {"weight": 0.2}}, 4, True),
        ({"kl": {}, "contrastive": {"weight": 0.2}}, 8, False),
        ({"kl": {}, "contrastive": {}}, 4, False),
        ({"margin_mse": {}}, 2, False),  # not measured
    ],
)
def test_few_documents_that_outweigh_the_batch_are_told(
    chosen: dict[str, Any], group: int, told: bool
) -> None:
    assert bool(outweighed_batch(losses(chosen, EVERYTHING), group)) is told
