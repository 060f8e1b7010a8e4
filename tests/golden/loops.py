"""Equations as loops over plain numbers, and gradients by differences."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import nn

from isthmus.nn.backbone import Backbone
from isthmus.nn.heads import TiedHead
from isthmus.nn.layers import Layer
from isthmus.pretraining.decoders import visibility
from isthmus.pretraining.step import IGNORED, Step

Vector = list[float]
Map = Callable[[Vector], Vector]


def linear(module: nn.Linear) -> Map:
    weight, bias = module.weight.tolist(), module.bias.tolist()
    return lambda vector: [dot(row, vector) + b for row, b in zip(weight, bias, strict=True)]


def norm(module: nn.LayerNorm) -> Map:
    scale, shift, epsilon = module.weight.tolist(), module.bias.tolist(), module.eps

    def compute(vector: Vector) -> Vector:
        mean = sum(vector) / len(vector)
        deviation = math.sqrt(sum((x - mean) ** 2 for x in vector) / len(vector) + epsilon)
        return [
            (x - mean) / deviation * g + b for x, g, b in zip(vector, scale, shift, strict=True)
        ]

    return compute


def gelu(x: float) -> float:
    return 0.5 * x * (1 + math.erf(x / math.sqrt(2)))


def add(*vectors: Vector) -> Vector:
    return [sum(entries) for entries in zip(*vectors, strict=True)]


def dot(one: Vector, two: Vector) -> float:
    return sum(x * y for x, y in zip(one, two, strict=True))


def log_softmax(scores: Vector, target: int) -> float:
    """log softmax(scores)[target], in the order of the definition."""
    highest = max(scores)
    total = sum(math.exp(score - highest) for score in scores)
    return scores[target] - highest - math.log(total)


def plain_layer(
    layer: Layer,
    queries: list[Vector],
    visible: list[list[bool]],
    content: list[Vector],
    pre: bool = False,
) -> list[Vector]:
    """A layer as loops, normed after each part, or before; every row must see something."""
    first, second = norm(layer.attention_norm), norm(layer.feed_forward_norm)
    output, expand, contract = map(linear, (layer.output, layer.expand, layer.contract))
    asked = [linear(layer.query)(first(row) if pre else row) for row in queries]
    content = [first(row) if pre else row for row in content]
    keys = [linear(layer.key)(row) for row in content]
    values = [linear(layer.value)(row) for row in content]
    size = layer.shape.width // layer.shape.heads
    results = []
    for row, query in enumerate(asked):
        answer: Vector = []
        columns = [column for column in range(len(content)) if visible[row][column]]
        for head in range(layer.shape.heads):
            part = slice(head * size, (head + 1) * size)
            scores = [
                math.exp(dot(query[part], keys[column][part]) / math.sqrt(size))
                for column in columns
            ]
            for place in range(part.start, part.stop):
                mixed = [s * values[c][place] for s, c in zip(scores, columns, strict=True)]
                answer.append(sum(mixed) / sum(scores))
        state = add(queries[row], output(answer))
        state = state if pre else first(state)
        inner = second(state) if pre else state
        fed = contract([gelu(x) for x in expand(inner)])
        results.append(add(state, fed) if pre else second(add(state, fed)))
    return results


def plain_head(backbone: Backbone) -> Map:
    """The head of methods as loops over the weights of this moment: dense, GELU, LayerNorm, Eᵀ."""
    predictions = backbone.model.cls.predictions
    dense = linear(predictions.transform.dense)
    normed = norm(predictions.transform.LayerNorm)
    embeddings = backbone.word_embeddings.tolist()
    output = predictions.bias.tolist()

    def head(state: Vector) -> Vector:
        inner = normed([gelu(x) for x in dense(state)])
        return [dot(row, inner) + b for row, b in zip(embeddings, output, strict=True)]

    return head


def plain_embeddings(backbone: Backbone, ids: list[int]) -> list[Vector]:
    """Word + position + type, LayerNorm, of the weights of this moment."""
    embeddings = backbone.encoder.embeddings
    words = embeddings.word_embeddings.weight.tolist()
    positions = embeddings.position_embeddings.weight.tolist()
    types = embeddings.token_type_embeddings.weight.tolist()
    normed = norm(embeddings.LayerNorm)
    return [normed(add(words[i], positions[n], types[0])) for n, i in enumerate(ids)]


def plain_reconstruction(backbone: Backbone, part: Any, step: Step, labels: torch.Tensor) -> float:
    """The summed cross-entropy of a decoder at given labels, text by text without its padding."""

    def bidirectional(part: Any, step: Step, row: int, vector: Vector) -> list[Vector]:
        return stacked(
            part, [vector, *plain_embeddings(backbone, texts(step, "decoder_ids")[row])[1:]]
        )

    def condenser(part: Any, step: Step, row: int, vector: Vector) -> list[Vector]:
        length = int(step["attention_mask"][row].sum())
        return stacked(part, [vector, *step["middle_states"][row, 1:length].tolist()])

    def stacked(part: Any, states: list[Vector]) -> list[Vector]:
        everything = [[True] * len(states)] * len(states)
        for layer in part.stack.layers:
            states = plain_layer(layer, states, everything, states)
        return states

    def autoregressive(part: Any, step: Step, row: int, vector: Vector) -> list[Vector]:
        states = [vector, *plain_embeddings(backbone, texts(step, "input_ids")[row])[1:]]
        window = part.settings.window or len(states)
        visible = [
            [column == 0 or place - window < column <= place for column in range(len(states))]
            for place in range(len(states))
        ]
        states = plain_layer(part.layer, states, visible, states, pre=True)
        return [norm(part.norm)(state) for state in states]

    def enhanced(part: Any, step: Step, row: int, vector: Vector) -> list[Vector]:
        content = [vector, *plain_embeddings(backbone, texts(step, "input_ids")[row])[1:]]
        length = len(content)
        positions = backbone.encoder.embeddings.position_embeddings.weight.tolist()
        attended = step["attention_mask"].bool()
        visible = visibility(step["keys"], step["words"], attended, part.settings.rate)
        queries = [add(vector, position) for position in positions[:length]]
        return plain_layer(part.layer, queries, visible[row, :length, :length].tolist(), content)

    def own_head(part: TiedHead) -> Map:
        embeddings, bias = backbone.word_embeddings.tolist(), part.bias.tolist()

        def compute(state: Vector) -> Vector:
            inner = norm(part.norm)(linear(part.dense)(state))
            return [dot(row, inner) + b for row, b in zip(embeddings, bias, strict=True)]

        return compute

    kinds = {
        "Bidirectional": bidirectional, "Autoregressive": autoregressive, "Enhanced": enhanced,
        "Condenser": condenser,
    }  # fmt: skip

    name = type(part).__name__
    own = getattr(part, "own_head", None)
    head = plain_head(backbone) if own is None else own_head(own)
    loss = 0.0
    for row, wanted in enumerate(labels.tolist()):
        origin = row if name == "Condenser" else int(step["partner"][row])
        states = kinds[name](part, step, row, step["bottleneck"][origin].tolist())
        for state, label in zip(states, wanted, strict=False):
            if label != IGNORED:
                loss -= log_softmax(head(state), label)
    return loss


def texts(step: Step, field: str) -> list[list[int]]:
    """The ids of each row without its padding."""
    lengths = step["attention_mask"].sum(1).tolist()
    return [row[:length] for row, length in zip(step[field].tolist(), lengths, strict=True)]


def numerical_gradient(function: Callable[[], float], tensor: torch.Tensor) -> torch.Tensor:
    """Central differences of a plain function, entry by entry of a tensor it reads."""
    gradient = torch.zeros_like(tensor)
    entries, slots = tensor.data.view(-1), gradient.view(-1)
    for place in range(len(entries)):
        original = entries[place].item()
        entries[place] = original + 1e-5
        above = function()
        entries[place] = original - 1e-5
        below = function()
        entries[place] = original
        slots[place] = (above - below) / 2e-5
    return gradient


def check_slopes(
    loss: torch.Tensor,
    function: Callable[[], float],
    parameters: Iterable[torch.Tensor],
    still: Iterable[torch.Tensor] = (),
) -> None:
    """Compares a loss's gradient with differences of a plain function, along random directions.

    Each direction moves all given parameters at once; `still` are those that must have none.
    """
    moved, resting = list(parameters), list(still)
    found = torch.autograd.grad(loss, moved + resting, allow_unused=True)
    gradients = found[: len(moved)]
    assert all(gradient is not None for gradient in gradients)
    assert not any(g is not None and g.any() for g in found[len(moved) :])
    generator = torch.Generator().manual_seed(0)
    for _ in range(3):
        direction = [torch.randn(p.shape, generator=generator).double() for p in moved]
        derivative = sum(
            float((gradient * along).sum())
            for gradient, along in zip(gradients, direction, strict=True)
        )
        sides = []
        for size in (1e-6, -2e-6):  # one step above, one below, and home again
            for parameter, along in zip(moved, direction, strict=True):
                parameter.data.add_(along, alpha=size)
            sides.append(function())
        for parameter, along in zip(moved, direction, strict=True):
            parameter.data.add_(along, alpha=1e-6)
        assert derivative == pytest.approx((sides[0] - sides[1]) / 2e-6, rel=1e-4)


def check_all_weights(
    backbone: Backbone, loss: torch.Tensor, function: Callable[[], float]
) -> None:
    """The same for every parameter the loss reaches: encoder, head and tied embeddings."""
    everything = list(backbone.parameters())
    found = torch.autograd.grad(loss, everything, allow_unused=True, retain_graph=True)
    reached = [p for p, g in zip(everything, found, strict=True) if g is not None]
    assert len(reached) > len(everything) / 2
    check_slopes(loss, function, reached)
