"""A stage resolved once: every part its settings name, and none that training changes."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import pytest
from tests.factories import bert
from transformers import BertForMaskedLM

from isthmus.encoders.sparse import SparseEncoder, SparseSettings
from isthmus.finetuning.settings import FinetuneSettings
from isthmus.finetuning.stages import Stage, resolve_stage
from isthmus.nn.backbone import Backbone
from isthmus.text.tokenizer import new_tokenizer


def resolved(**values: Any) -> Stage:
    flags = {"model": "m", "collection": "c", "output": "o"}
    return resolve_stage(FinetuneSettings.parse({**flags, **values}, "test"))


def test_every_part_is_there() -> None:
    sources = [{"name": "bm25", "num_negatives": 3}, {"name": "retriever", "model": "stage:a"}]
    teacher = {"name": "cross_encoder", "model": "stage:b"}
    stage = resolved(negatives=sources, teacher=teacher, losses={"kl": {}})
    assert [type(source).__name__ for source in stage.sources] == ["Bm25", "Retriever"]
    assert stage.group == 1 + 3 + 15
    assert stage.distils
    assert not resolved().distils
    placed = stage.after({"a": Path("x/a-1"), "b": Path("x/b-2")})
    assert placed.sources[1].settings.model == str(Path("x/a-1"))
    assert placed.teacher is not None
    assert placed.teacher.settings.model == str(Path("x/b-2"))
    assert placed.written == stage.written
    with pytest.raises(FrozenInstanceError):
        placed.losses = ()  # type: ignore[misc]


def test_two_trainings_of_a_stage_do_not_share_a_controller() -> None:
    tokenizer = new_tokenizer(["some", "words"] * 20, 60)
    config = bert(len(tokenizer), max_position_embeddings=144)
    backbone = Backbone(BertForMaskedLM(config))
    encoder = SparseEncoder(backbone, tokenizer, SparseSettings())
    stage = resolved(encoder="sparse", regularizers={"flops": {"target": {"documents": 9}}})
    one, two = (stage.kind.task(encoder, 1, stage.losses, None) for _ in range(2))
    assert one.controllers.keys() == two.controllers.keys() == {"flops/documents"}  # type: ignore[attr-defined]
    assert one.controllers["flops/documents"] is not two.controllers["flops/documents"]  # type: ignore[attr-defined]
