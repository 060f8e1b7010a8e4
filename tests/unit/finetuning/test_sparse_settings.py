"""What a fine-tuning of a sparse encoder is told, and what it refuses before any weight is read."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from isthmus.config import resolve
from isthmus.errors import SettingsError, TrainingError
from isthmus.finetuning.regularizers import StopWhenEmpty, active_terms, regularizers, settled
from isthmus.finetuning.settings import FinetuneSettings
from isthmus.finetuning.stages import resolve_stage

FLAGS = {"collection": "no/such/collection", "output": "o", "model": "m"}


def settings(recipe: str | None = None, **more: Any) -> FinetuneSettings:
    return FinetuneSettings.parse({**resolve("finetune", recipe, FLAGS), **more}, "test")


@pytest.mark.parametrize(
    ("values", "what", "remedy"),
    [
        (
            {"regularizers": {"flops": {"documents": 0.1}}},
            "regularizers = {'flops': {'documents': 0.1}} has no effect on a dense encoder",
            "encoder=sparse",
        ),
        (
            {"encoder": "sparse", "similarity": "cosine"},
            "similarity = 'cosine' has no effect on a sparse encoder",
            "encoder=dense",
        ),
    ],
)
def test_settings_that_would_have_no_effect(values: dict[str, Any], what: str, remedy: str) -> None:
    with pytest.raises(SettingsError) as caught:  # not the missing collection's error
        resolve_stage(settings(**values))
    assert what in caught.value.what
    assert remedy in caught.value.fix


@pytest.mark.parametrize(
    ("chosen", "share"),
    [
        ({}, 0),
        ({"l1": {"queries": 1, "ramp": 0}}, 0),
        ({"flops": {"documents": 1}, "l1": {"queries": 1, "ramp": 0.2}}, 1 / 3),
        ({"flops": {"target": {"documents": 9}}, "l1": {"queries": 1, "ramp": 0.5}}, 2 / 3),
        ({"l1": {"queries": 1, "ramp": 1.0}}, 0.99),
    ],
)
def test_when_vectors_are_as_sparse_as_they_will_be(chosen: dict[str, Any], share: float) -> None:
    assert settled(regularizers(chosen)) == pytest.approx(share)


def test_active_terms_are_counted_per_text() -> None:
    assert active_terms(torch.tensor([[0.0, 0.5, 0.1], [0.0, 0.0, 0.0]])).item() == 1.0


@pytest.mark.parametrize("side", ["queries", "documents"])
def test_training_stops_when_every_vector_is_empty(side: str) -> None:
    watch = StopWhenEmpty()
    place = SimpleNamespace(output_dir="runs/sparse"), SimpleNamespace(global_step=40), None
    logs = {"loss": 1.0, "active_terms/queries": 0.01, "active_terms/documents": 0.01}
    watch.on_log(*place, logs=logs)
    watch.on_log(*place, logs={"train_runtime": 3.0})
    with pytest.raises(TrainingError, match=f"all {side} have empty vectors at step 40"):
        watch.on_log(*place, logs={**logs, f"active_terms/{side}": 0.0})
