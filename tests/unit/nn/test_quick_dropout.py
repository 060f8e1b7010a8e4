"""Quick dropout: torch's distribution and torch's seeds, whatever draws the bits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as functional
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import (
    AutoModel,
    BertConfig,
    BertModel,
    DistilBertConfig,
    DistilBertModel,
    ElectraConfig,
    ElectraModel,
    ModernBertConfig,
    ModernBertModel,
    MPNetConfig,
    MPNetModel,
    RobertaConfig,
    RobertaModel,
)

from isthmus.nn.attention import Attention, attention_name
from isthmus.nn.backbone import Backbone, new_backbone
from isthmus.nn.numerics import Dropout, drop, use_quick_dropout

SMALL = {
    "vocab_size": 60, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 32, "max_position_embeddings": 24, "initializer_range": 0.3,
}  # fmt: skip
MODELS: dict[str, tuple[Any, Any]] = {
    "bert": (BertConfig, BertModel),
    "roberta": (RobertaConfig, RobertaModel),
    "electra": (ElectraConfig, ElectraModel),
    "modernbert": (ModernBertConfig, ModernBertModel),
    "mpnet": (MPNetConfig, MPNetModel),
    "distilbert": (DistilBertConfig, DistilBertModel),
}


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_so_many_are_dropped_and_the_mean_stays(rate: float, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    size = 400_003
    states = torch.ones(size, dtype=dtype, requires_grad=True)
    found = drop(states, rate)
    assert found.dtype == dtype
    gone = (found == 0).float()
    deviation = (rate * (1 - rate) / size) ** 0.5
    assert abs(gone.mean().item() - rate) < 5 * deviation
    assert len(set(found.tolist())) == 2
    assert found.max().item() == pytest.approx(1 / (1 - rate), rel=1e-2)
    # Neighbours, which share a draw of 64 bits, know nothing of each other.
    for distance in (1, 2, 3, 4):
        both = (gone[:-distance] * gone[distance:]).mean().item()
        assert abs(both - rate**2) < 8 * deviation
    found.float().sum().backward()  # type: ignore[no-untyped-call]
    assert states.grad is not None
    assert torch.equal(states.grad, found.detach())


def test_torchs_seed_decides() -> None:
    states = torch.ones(5, 7, 3)
    torch.manual_seed(3)
    one, other = drop(states, 0.4), drop(states, 0.4)
    torch.manual_seed(3)
    assert torch.equal(one, drop(states, 0.4))
    assert not torch.equal(one, other)


def test_what_is_computed_again_drops_the_same() -> None:
    torch.manual_seed(0)
    states = torch.ones(300, requires_grad=True)
    found = checkpoint(lambda given: drop(given, 0.3).exp(), states, use_reentrant=False)
    found.sum().backward()
    assert states.grad is not None
    assert torch.equal(states.grad == 0, found == 1), "the gradient passes where the value did"


def test_nothing_is_dropped_outside_training() -> None:
    states = torch.randn(50)
    assert torch.equal(drop(states, 0.5, training=False), states)
    assert torch.equal(drop(states, 0.0), states)
    assert not drop(states, 1.0).any()
    assert torch.equal(Dropout(0.5).eval()(states), states)
    assert not torch.equal(Dropout(0.5)(states), states)


@pytest.mark.parametrize("name", MODELS)
def test_attention_is_that_of_transformers(name: str) -> None:
    config_class, model_class = MODELS[name]
    torch.manual_seed(1)
    plain = model_class(config_class(**SMALL, pad_token_id=0, attn_implementation="eager")).eval()
    quick = model_class(
        config_class(**SMALL, pad_token_id=0, attn_implementation=attention_name("eager"))
    ).eval()
    quick.load_state_dict(plain.state_dict())
    ids = torch.randint(5, 60, (4, 12))
    mask = torch.ones_like(ids)
    mask[1, 5:] = mask[3, 9:] = 0
    with torch.no_grad():
        outputs = [model(ids, attention_mask=mask).last_hidden_state for model in (plain, quick)]
    torch.testing.assert_close(*outputs, rtol=1e-5, atol=1e-6)


def test_a_model_in_training_asks_torch_for_no_dropout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new_backbone("tiny", 60, 0).save(tmp_path)
    backbone = Backbone.load(str(tmp_path), attention="eager").train()

    def refuse(states: torch.Tensor, rate: float, *_: Any, **__: Any) -> torch.Tensor:
        assert rate == 0
        return states

    monkeypatch.setattr(functional, "dropout", refuse)
    monkeypatch.setattr(nn.functional, "dropout", refuse)
    ids = torch.randint(5, 60, (2, 6))
    one, other = (backbone(ids, torch.ones_like(ids)) for _ in range(2))
    assert not torch.equal(one, other), "but something is dropped"


@pytest.mark.parametrize("kind", ["eager", "sdpa"])
def test_a_saved_model_is_anyones(kind: Attention, tmp_path: Path) -> None:
    new_backbone("tiny", 60, 0).save(tmp_path / "start")
    backbone = Backbone.load(str(tmp_path / "start"), attention=kind)
    assert backbone.config._attn_implementation == attention_name(kind)
    backbone.save(tmp_path / "saved")
    written = (tmp_path / "saved" / "config.json").read_text(encoding="utf-8")
    assert attention_name(kind) not in written
    assert "model_type" in json.loads((tmp_path / "saved" / "config.json").read_text("utf-8"))
    model = AutoModel.from_pretrained(tmp_path / "saved")
    assert type(next(m for m in model.modules() if isinstance(m, nn.Dropout))) is nn.Dropout
    use_quick_dropout(model)
    assert {type(m) for m in model.modules() if isinstance(m, nn.Dropout)} == {Dropout}


def test_compiled_it_is_one_graph() -> None:
    compiled = torch.compile(lambda states: drop(states, 0.5), backend="eager", fullgraph=True)
    found = compiled(torch.ones(1000))
    assert set(found.unique().tolist()) == {0.0, 2.0}
