"""Plain layers: the models' own results with their weights, and the equations without them."""

from __future__ import annotations

import math
from typing import Any, Literal

import pytest
import torch
from tests.golden.loops import add, gelu, linear, norm
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel

from isthmus.errors import SettingsError
from isthmus.nn.architectures import MASKED_LM, LayerShape
from isthmus.nn.backbone import Backbone
from isthmus.nn.layers import Layer, copy_layer
from isthmus.nn.packing import Full, Packing, Visible

# Every value another one, and none a default, so that no name can stand for its neighbour.
BERT: dict[str, Any] = {
    "vocab_size": 67, "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 4,
    "intermediate_size": 24, "max_position_embeddings": 40, "pad_token_id": 1,
    "hidden_dropout_prob": 0.3, "attention_probs_dropout_prob": 0.4, "hidden_act": "gelu_new",
    "layer_norm_eps": 1e-4,
}  # fmt: skip
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "bert": BERT,
    "roberta": BERT,
    "xlm-roberta": BERT,
    "camembert": BERT,
    "electra": {**BERT, "embedding_size": 12},
    "distilbert": {
        "vocab_size": 67, "dim": 16, "n_layers": 3, "n_heads": 4, "hidden_dim": 24,
        "max_position_embeddings": 40, "pad_token_id": 1, "dropout": 0.3,
        "attention_dropout": 0.4, "activation": "gelu_new",
    },
    "mpnet": BERT,
    "modernbert": {
        "vocab_size": 67, "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 4,
        "intermediate_size": 24, "max_position_embeddings": 40, "pad_token_id": 1,
        "mlp_dropout": 0.3, "attention_dropout": 0.4, "hidden_activation": "gelu_new",
        "norm_eps": 1e-4, "embedding_dropout": 0.2,
    },
}  # fmt: skip
NOT_COPIED = ["modernbert", "mpnet"]
COPIED = sorted(set(CONFIGURATIONS) - set(NOT_COPIED))
SHAPE = LayerShape(
    width=8, heads=2, intermediate=12, dropout=0.0, attention_dropout=0.0, activation="gelu",
    norm_epsilon=1e-5,
)  # fmt: skip
IDS = torch.tensor([[0, 9, 33, 60, 5, 8, 13, 2], [0, 66, 7, 2, 1, 1, 1, 1]])
MASK = IDS != 1


def random_backbone(kind: str) -> Backbone:
    torch.manual_seed(1)
    config = AutoConfig.for_model(kind, **CONFIGURATIONS[kind])
    model = AutoModel.from_config(config, attn_implementation="eager")
    shake(model)
    return Backbone(model).eval()


def random_layer(norm: Literal["post", "pre"], shape: LayerShape = SHAPE) -> Layer:
    torch.manual_seed(2)
    layer = Layer(shape, norm)
    shake(layer, 0.3)
    return layer


def shake(module: nn.Module, strength: float = 0.1) -> None:
    with torch.no_grad():
        for parameter in module.parameters():  # biases and norms that matter
            parameter.add_(strength * torch.randn_like(parameter))


def test_every_known_architecture_is_here() -> None:
    assert set(CONFIGURATIONS) == set(MASKED_LM)


@pytest.mark.parametrize("kind", COPIED)
def test_a_copied_layer_computes_what_the_models_own_does(kind: str) -> None:
    backbone = random_backbone(kind)
    with torch.no_grad():
        states = backbone.encoder(
            input_ids=IDS, attention_mask=MASK.long(), output_hidden_states=True
        ).hidden_states
        for number in range(3):
            layer = Layer(LayerShape.of(backbone.config)).eval()
            copy_layer(backbone, number, layer)
            found = layer(states[number], MASK[:, None, None, :])
            torch.testing.assert_close(found, states[number + 1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("visible", ["a mask", "all", "what lies before", "packed"])
@pytest.mark.parametrize("crossed", [False, True], ids=["of itself", "of others"])
def test_the_form_that_kernels_compute(
    visible: str, crossed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Products without their biases, queries, keys and values in one: the same layer."""
    if crossed and visible == "packed":
        pytest.skip("streams ask themselves alone")
    layer = random_layer("post").double()
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    packing = Packing.of(mask)
    ways: dict[str, Visible] = {
        "a mask": mask.bool()[:, None, None, :],
        "all": Full(),
        "what lies before": Full(causal=True),
        "packed": packing,
    }
    shape = (1, len(packing.tokens), 8) if visible == "packed" else (2, 5, 8)
    states, content = (torch.randn(*shape, dtype=torch.float64, requires_grad=True) for _ in "ab")
    found = []
    for kernels in (True, False):
        monkeypatch.setattr("isthmus.nn.layers.has_kernels", lambda states, use=kernels: use)
        result = layer(states, ways[visible], content if crossed else None).double()
        weights = torch.arange(result.numel(), dtype=torch.float64).view_as(result).sin()
        given = [states, *layer.parameters()] + [content] * crossed
        found.append([result.detach(), *torch.autograd.grad((result * weights).sum(), given)])
    torch.testing.assert_close(found[0], found[1])


@pytest.mark.parametrize("kind", NOT_COPIED)
def test_layers_that_compute_something_else_are_not_copied(kind: str) -> None:
    backbone = random_backbone(kind)
    with pytest.raises(SettingsError, match=f"layers of a '{kind}' model") as caught:
        copy_layer(backbone, 0, Layer(LayerShape.of(backbone.config)))
    assert "decoder.init" in caught.value.what
    assert caught.value.fix == "--set decoder.init=random"


def attended(
    layer: Layer, query: list[float], content: list[list[float]], visible: list[list[bool]]
) -> list[float]:
    """What one position takes from the content; `visible` by head and column."""
    size = layer.shape.width // layer.shape.heads
    asked = linear(layer.query)(query)
    keys = [linear(layer.key)(vector) for vector in content]
    values = [linear(layer.value)(vector) for vector in content]
    answer = []
    for head in range(layer.shape.heads):
        part = slice(head * size, (head + 1) * size)
        weights = [
            math.exp(sum(q * k for q, k in zip(asked[part], key[part], strict=True)) / size**0.5)
            if seen
            else 0.0
            for key, seen in zip(keys, visible[head], strict=True)
        ]
        for place in range(part.start, part.stop):
            total = sum(w * value[place] for w, value in zip(weights, values, strict=True))
            answer.append(total / sum(weights))
    return linear(layer.output)(answer)


def fed_forward(layer: Layer, vector: list[float]) -> list[float]:
    return linear(layer.contract)([gelu(v) for v in linear(layer.expand)(vector)])


def plainly(layer: Layer, states: Tensor, visible: Tensor, content: Tensor) -> Tensor:
    rows = []
    for text, others, seen in zip(states.tolist(), content.tolist(), visible.tolist(), strict=True):
        for number, query in enumerate(text):
            seen_here = [head[number] for head in seen]
            if layer.norm == "post":
                middle = add(query, attended(layer, query, others, seen_here))
                middle = norm(layer.attention_norm)(middle)
                row = norm(layer.feed_forward_norm)(add(middle, fed_forward(layer, middle)))
            else:
                asking = norm(layer.attention_norm)(query)
                answering = [norm(layer.attention_norm)(other) for other in others]
                middle = add(query, attended(layer, asking, answering, seen_here))
                row = add(middle, fed_forward(layer, norm(layer.feed_forward_norm)(middle)))
            rows.append(row)
    return torch.tensor(rows, dtype=torch.float64).view_as(states)


@pytest.mark.parametrize("kind", ["post", "pre"])
@pytest.mark.parametrize("streams", [1, 2])
def test_the_equations_in_plain_loops(kind: Literal["post", "pre"], streams: int) -> None:
    layer = random_layer(kind).double().eval()
    states = torch.randn(2, 5, 8, dtype=torch.float64)
    content = torch.randn(2, 7, 8, dtype=torch.float64) if streams == 2 else None
    keys = states if content is None else content
    visible = torch.rand(2, 2, 5, keys.shape[1]) < 0.5
    visible[..., 0] = True
    expected = plainly(layer, states, visible, keys)
    found = layer(states, visible, content)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kind", ["post", "pre"])
def test_what_is_not_visible_changes_nothing(kind: Literal["post", "pre"]) -> None:
    layer = random_layer(kind).eval()
    states, content = torch.randn(2, 4, 8), torch.randn(2, 4, 8)
    visible = ~torch.eye(4, dtype=torch.bool)
    other = content.clone()
    other[:, 2] = torch.randn(8)
    change = (layer(states, visible, content) - layer(states, visible, other)).abs().amax((0, 2))
    assert change[2] == 0
    assert (change[[0, 1, 3]] > 1e-4).all()


@pytest.mark.parametrize("kind", ["post", "pre"])
def test_a_row_that_sees_nothing_takes_nothing(kind: Literal["post", "pre"]) -> None:
    layer = random_layer(kind).train()
    states = torch.randn(2, 4, 8, requires_grad=True)
    visible = torch.ones(2, 1, 4, 4, dtype=torch.bool)
    visible[1, :, 2] = False
    found = layer(states, visible)
    assert torch.isfinite(found).all()
    found[1, 2].square().sum().backward()
    assert states.grad is not None
    assert torch.isfinite(states.grad).all()
    assert all(torch.isfinite(p.grad).all() for p in layer.parameters() if p.grad is not None)
    reached = states.grad.abs().sum(2) > 0
    assert reached.nonzero().tolist() == [[1, 2]], "only through its own residual"
    # As if every value were 0: the bias of the output remains.
    with torch.no_grad():
        layer.value.weight.zero_()
        layer.value.bias.zero_()
        torch.testing.assert_close(layer(states, visible)[1, 2], found[1, 2])
