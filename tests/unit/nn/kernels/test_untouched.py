"""Layers of our own step aside where a module computes more than its weights say.

Here they run on what says the same as their kernels in plain torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, distributed, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.utils import parametrize
from transformers import BertConfig, BertForMaskedLM

from isthmus.nn.architectures import LayerShape
from isthmus.nn.backbone import Backbone
from isthmus.nn.heads import TiedHead
from isthmus.nn.layers import Layer
from isthmus.nn.packing import Asking, Packing

IDS = torch.tensor([[2, 5, 3, 0, 0, 0], [2, 8, 9, 5, 6, 3]])
MASK = (IDS != 0).long()
OTHER = torch.randn(16, 24, generator=torch.Generator().manual_seed(0))
SHAPE = LayerShape(16, 2, 24, 0.0, 0.0, "gelu", 1e-12)
Own = Callable[[bool], None]


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> Own:
    """Lets layers of our own run, or not."""

    def allow(allowed: bool) -> None:
        for module in ("backbone", "heads", "layers"):
            monkeypatch.setattr(f"isthmus.nn.{module}.has_kernels", lambda states: allowed)

    return allow


class Adapter(nn.Module):
    """A layer with a low-rank product added, and the weight of the layer as its own: peft's."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base
        self.down = nn.Linear(base.in_features, 2, bias=False)
        self.up = nn.Linear(2, base.out_features, bias=False)

    @property
    def weight(self) -> Tensor:
        return self.base.weight

    @property
    def bias(self) -> Tensor:
        return self.base.bias

    def forward(self, states: Tensor) -> Tensor:
        result: Tensor = self.base(states) + self.up(self.down(states))
        return result


class Doubled(nn.Module):
    """Twice a weight."""

    def forward(self, weight: Tensor) -> Tensor:
        return 2 * weight


def adapt(parent: nn.Module, name: str) -> None:
    setattr(parent, name, Adapter(getattr(parent, name)))


def doubled(module: nn.Module, inputs: object, output: Tensor) -> Tensor:
    return 2 * output


def by_peft(model: BertForMaskedLM) -> None:
    peft = pytest.importorskip("peft", reason="peft is not installed")
    settings = peft.LoraConfig(r=2, target_modules=["value"], init_lora_weights=False)
    peft.inject_adapter_in_model(settings, model)


TOUCHES: dict[str, Callable[[BertForMaskedLM], object]] = {
    "adapter": lambda model: adapt(model.bert.encoder.layer[1].attention.self, "query"),
    "adapter of peft": by_peft,
    "adapter of the head": lambda model: adapt(model.cls.predictions.transform, "dense"),
    "parametrised weight": lambda model: parametrize.register_parametrization(
        model.bert.encoder.layer[0].output.dense, "weight", Doubled()
    ),
    "hook on a matrix": lambda model: model.bert.encoder.layer[1].output.dense
    .register_forward_hook(doubled),
    "hook on a layer": lambda model: model.bert.encoder.layer[0].register_forward_hook(doubled),
    "hook on a norm": lambda model: model.bert.embeddings.LayerNorm
    .register_forward_hook(doubled),
    "hook on the head": lambda model: model.cls.predictions.transform
    .register_forward_hook(doubled),
    "another method": lambda model: setattr(
        model.bert.encoder.layer[1].intermediate.dense, "forward", lambda states: states @ OTHER
    ),
}  # fmt: skip


def bert() -> BertForMaskedLM:
    torch.manual_seed(1)
    config = BertConfig(
        vocab_size=40, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=24, max_position_embeddings=8, initializer_range=0.3,
    )  # fmt: skip
    return BertForMaskedLM(config)


def answered(backbone: Backbone) -> Tensor:
    with torch.no_grad():
        return backbone.eval().head(backbone(IDS, MASK))[MASK.bool()]


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("touch", TOUCHES.values(), ids=TOUCHES)
def test_a_touched_model_computes_what_its_modules_do(
    touch: Callable[[BertForMaskedLM], object], before: bool, own: Own
) -> None:
    model = bert()
    plain = answered(Backbone(bert()))
    if before:
        touch(model)
    backbone = Backbone(model)
    if not before:
        touch(model)
    own(False)
    expected = answered(backbone)
    assert (expected - plain).norm() > 0.01 * plain.norm()
    own(True)
    assert torch.equal(answered(backbone), expected)


def test_own_layers_come_back_when_an_adapter_is_merged(own: Own) -> None:
    own(True)
    backbone = Backbone(bert())
    attention = backbone.model.bert.encoder.layer[0].attention.self
    whole, found = attention.query, [backbone.asks_for_some]
    adapt(attention, "query")
    found.append(backbone.asks_for_some)
    attention.query = whole
    assert [*found, backbone.asks_for_some] == [True, False, True]


@pytest.fixture
def process_group(tmp_path: Path) -> Iterator[None]:
    """One process alone."""
    store = distributed.FileStore(str(tmp_path / "store"), 1)  # type: ignore[attr-defined]
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        yield
    finally:
        distributed.destroy_process_group()


@pytest.mark.usefixtures("process_group")
@pytest.mark.parametrize("by_layer", [True, False], ids=["by layer", "as a whole"])
def test_sharded_weights_compute_the_same(by_layer: bool, own: Own) -> None:
    own(True)
    whole, sharded = Backbone(bert()).eval(), Backbone(bert()).eval()
    if by_layer:
        for layer in sharded.layers:
            fully_shard(layer)
    fully_shard(sharded)
    found, expected = sharded(IDS, MASK), whole(IDS, MASK)
    torch.testing.assert_close(found[MASK.bool()], expected[MASK.bool()])
    found[MASK.bool()].sin().sum().backward()
    expected[MASK.bool()].sin().sum().backward()
    for one, other in zip(sharded.encoder.parameters(), whole.encoder.parameters(), strict=True):
        assert (one.grad is None) == (other.grad is None)
        if one.grad is not None and other.grad is not None:
            torch.testing.assert_close(one.grad.full_tensor(), other.grad, rtol=1e-4, atol=1e-5)


def test_layers_and_heads_of_decoders_step_aside(own: Own) -> None:
    torch.manual_seed(2)
    layer, embeddings = Layer(SHAPE), torch.randn(40, 16)
    head = TiedHead(16, embeddings, 1e-12)
    packing = Packing.of(MASK)
    states = torch.randn(1, len(packing.tokens), 16)
    asking = Asking.of((IDS == 5) | (IDS == 2))

    def computed() -> list[Tensor]:
        some = layer.of_some(states, packing, asking)
        return [layer(states, packing), some, head(some, embeddings).logits()]

    own(True)
    untouched = computed()
    own(False)
    for one, other in zip(computed(), untouched, strict=True):
        torch.testing.assert_close(one, other)
    adapt(layer, "output")
    head.norm.register_forward_hook(doubled)
    expected = computed()
    own(True)
    for one, other, before in zip(computed(), expected, untouched, strict=True):
        assert torch.equal(one, other)
        assert not torch.allclose(one, before)
