"""Reconstruction: CE through each decoder; layers, streams, labels and heads written as loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from isthmus.nn.backbone import Backbone
from isthmus.nn.heads import TiedHead
from isthmus.pretraining.decoders.enhanced import visibility
from isthmus.pretraining.labels import IGNORED
from isthmus.pretraining.objectives.reconstruction import Reconstruction
from isthmus.pretraining.parts import DECODERS, Decoder, ObjectiveSettings
from isthmus.pretraining.vocabulary import Vocabulary
from isthmus.text.tokenizer import Tokenizer
from isthmus.training.task import Batch

Vectors = list[list[float]]
I = IGNORED  # noqa: E741
# Two texts of two documents: a word of two pieces; an [UNK] inside; one token; none at all.
IDS = torch.tensor(
    [[2, 7, 40, 45, 12, 3], [2, 9, 1, 11, 3, 0], [2, 8, 3, 0, 0, 0], [2, 3] + [0] * 4]
)
MASK = (IDS != 0).long()
WORDS = torch.tensor([[-1, 0, 1, 1, 2, -1], [-1, 0, 1, 2, -1, -1], [-1, 0] + [-1] * 4, [-1] * 6])
PARTNER = [2, 3, 0, 1]
# What corruptions give: hidden tokens, one of them unchanged, one replaced.
HIDDEN = torch.tensor(
    [[2, 4, 40, 45, 33, 3], [2, 9, 1, 4, 3, 0], [2, 8, 3, 0, 0, 0], [2, 3] + [0] * 4]
)
LABELS = torch.tensor([[I, 7, I, 45, 12, I], [I, I, I, 11, I, I], [I, 8, I, I, I, I], [I] * 6])
ENCODER_LABELS = torch.tensor(
    [[I, I, 40, I, 12, I], [I, 9, I, I, I, I], [I, 8, I, I, I, I], [I] * 6]
)
# The next token; behind [UNK] it goes on, [UNK] itself is never told; [SEP] closes every text.
NEXT = torch.tensor([[7, 40, 45, 12, 3, I], [9, I, 11, 3, I, I], [8, 3, I, I, I, I], [3] + [I] * 5])
EVERY = torch.tensor([[I, 7, 40, 45, 12, I], [I, 9, I, 11, I, I], [I, 8, I, I, I, I], [I] * 6])
EXPECTED = {
    "bidirectional": LABELS, "autoregressive": NEXT, "enhanced": EVERY, "condenser": ENCODER_LABELS,
}  # fmt: skip
CASES: list[tuple[str, dict[str, Any]]] = [
    ("bidirectional", {}),
    ("bidirectional", {"layers": 2}),
    ("bidirectional", {"head": "own"}),
    ("autoregressive", {}),
    ("autoregressive", {"window": 2}),
    ("enhanced", {}),
    ("enhanced", {"rate": 0.2}),
    ("condenser", {}),
    ("condenser", {"layers": 1}),
]


@pytest.fixture
def decoder(request: pytest.FixtureRequest, backbone: Backbone, tokenizer: Tokenizer) -> Decoder:
    name, settings = request.param
    kind = DECODERS.load(name)
    part: Decoder = kind(kind.Settings.parse(settings, where="test"))
    torch.manual_seed(5)
    part.build(backbone, tokenizer)
    for parameter in part.parameters():  # far from what it starts with, so that all of it matters
        parameter.data += 0.3 * torch.randn_like(parameter)
    return part.double()


@pytest.fixture
def step(decoder: Decoder, vocabulary: Vocabulary) -> Batch:
    """What a decoder is given, with a vector for each text and states half-way up."""
    generator = torch.Generator().manual_seed(6)
    batch = {
        "input_ids": IDS, "attention_mask": MASK, "words": WORDS, "labels": ENCODER_LABELS,
        "keys": torch.tensor([3, 1, 4, 15]), "partner": torch.tensor(PARTNER),
        "bottleneck": torch.randn(4, 8, generator=generator).double().requires_grad_(),
        "middle_states": torch.randn(4, 6, 8, generator=generator).double().requires_grad_(),
    }  # fmt: skip
    if type(decoder).__name__ == "Bidirectional":
        batch |= {"decoder_ids": HIDDEN, "decoder_labels": LABELS}
    return batch | decoder.prepare(batch, vocabulary)


@pytest.fixture
def plain(
    backbone: Backbone,
    plain_embeddings: Callable[[list[int]], Vectors],
    plain_layer: Callable[..., Vectors],
    plain_head: Callable[..., Any],
    plain_linear: Callable[..., Any],
    plain_norm: Callable[..., Any],
    log_softmax: Callable[..., float],
) -> Callable[[Any, Batch], float]:
    """The summed cross-entropy, text by text without its padding."""

    def bidirectional(part: Any, step: Batch, row: int, length: int) -> Vectors:
        ids = HIDDEN[row, :length].tolist()
        states = [step["bottleneck"][PARTNER[row]].tolist(), *plain_embeddings(ids)[1:]]
        return stacked(part, states)

    def condenser(part: Any, step: Batch, row: int, length: int) -> Vectors:
        middle = step["middle_states"][row, :length].tolist()
        return stacked(part, [step["bottleneck"][row].tolist(), *middle[1:]])

    def stacked(part: Any, states: Vectors) -> Vectors:
        everything = [[True] * len(states)] * len(states)
        for layer in part.stack.layers:
            states = plain_layer(layer, states, everything, states)
        return states

    def autoregressive(part: Any, step: Batch, row: int, length: int) -> Vectors:
        ids = IDS[row, :length].tolist()
        states = [step["bottleneck"][PARTNER[row]].tolist(), *plain_embeddings(ids)[1:]]
        window = part.settings.window or length
        visible = [
            [column == 0 or place - window < column <= place for column in range(length)]
            for place in range(length)
        ]
        states = plain_layer(part.layer, states, visible, states, pre=True)
        return [plain_norm(part.norm)(state) for state in states]

    def enhanced(part: Any, step: Batch, row: int, length: int) -> Vectors:
        vector = step["bottleneck"][PARTNER[row]].tolist()
        content = [vector, *plain_embeddings(IDS[row, :length].tolist())[1:]]
        positions = backbone.encoder.embeddings.position_embeddings.weight.tolist()
        queries = [[v + p for v, p in zip(vector, at, strict=True)] for at in positions[:length]]
        rate = part.settings.rate
        visible = visibility(step["keys"], WORDS, MASK.bool(), rate)[row, :length, :length]
        return plain_layer(part.layer, queries, visible.tolist(), content)

    def own_head(part: TiedHead) -> Callable[[list[float]], list[float]]:
        dense, norm = plain_linear(part.dense), plain_norm(part.norm)
        embeddings, bias = backbone.word_embeddings.tolist(), part.bias.tolist()

        def compute(state: list[float]) -> list[float]:
            inner = norm(dense(state))
            return [
                sum(e * x for e, x in zip(row, inner, strict=True)) + b
                for row, b in zip(embeddings, bias, strict=True)
            ]

        return compute

    kinds = {
        "Bidirectional": bidirectional, "Autoregressive": autoregressive, "Enhanced": enhanced,
        "Condenser": condenser,
    }  # fmt: skip

    def compute(part: Any, step: Batch) -> float:
        name = type(part).__name__
        own = getattr(part, "own_head", None)
        head = plain_head() if own is None else own_head(own)
        loss = 0.0
        for row, length in enumerate(MASK.sum(1).tolist()):
            states = kinds[name](part, step, row, length)
            for state, label in zip(states, EXPECTED[name.lower()][row].tolist(), strict=False):
                if label != IGNORED:
                    loss -= log_softmax(head(state), label)
        return loss

    return compute


def rebuilt(decoder: Decoder, step: Batch, backbone: Backbone, vocabulary: Vocabulary) -> Any:
    objective = Reconstruction(ObjectiveSettings())
    found = objective({**step, **decoder(step, backbone, vocabulary)}, backbone, vocabulary)
    assert list(found) == [""]
    return found[""]


every_decoder = pytest.mark.parametrize(
    "decoder", CASES, indirect=True, ids=lambda case: f"{case[0]}-{case[1]}"
)


@every_decoder
def test_labels_value_and_count(
    decoder: Decoder,
    step: Batch,
    backbone: Backbone,
    vocabulary: Vocabulary,
    plain: Callable[[Any, Batch], float],
) -> None:
    expected = EXPECTED[type(decoder).__name__.lower()]
    assert torch.equal(step["decoder_labels"], expected)
    count = Reconstruction(ObjectiveSettings()).count(step, vocabulary)
    assert count.item() == (expected != IGNORED).sum()
    loss = rebuilt(decoder, step, backbone, vocabulary)
    assert loss.item() == pytest.approx(plain(decoder, step), rel=1e-6)


@every_decoder
def test_gradient_of_the_bottleneck(
    decoder: Decoder,
    step: Batch,
    backbone: Backbone,
    vocabulary: Vocabulary,
    plain: Callable[[Any, Batch], float],
    numerical_gradient: Callable[..., torch.Tensor],
) -> None:
    vectors = step["bottleneck"]
    (found,) = torch.autograd.grad(rebuilt(decoder, step, backbone, vocabulary), vectors)
    expected = numerical_gradient(lambda: plain(decoder, step), vectors)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=2e-6)


@every_decoder
def test_gradient_of_all_weights(
    decoder: Decoder,
    step: Batch,
    backbone: Backbone,
    vocabulary: Vocabulary,
    plain: Callable[[Any, Batch], float],
    check_slopes: Callable[..., None],
) -> None:
    condenses = type(decoder).__name__ == "Condenser"
    own_head = getattr(decoder, "own_head", None) is not None
    moved: list[torch.Tensor] = [*decoder.parameters(), step["bottleneck"]]
    still: list[torch.Tensor] = []
    (moved if condenses else still).append(step["middle_states"])
    for name, parameter in backbone.named_parameters():
        # Embeddings unless the states come from half-way up; E is tied to every head.
        embeds = ("embeddings" in name and not condenses) or "word_embeddings" in name
        headed = name.startswith("model.cls") and not own_head
        (moved if embeds or headed else still).append(parameter)
    loss = rebuilt(decoder, step, backbone, vocabulary)
    check_slopes(loss, lambda: plain(decoder, step), moved, still)


@every_decoder
def test_a_batch_without_labels_is_zero_and_still_has_gradients(
    decoder: Decoder, step: Batch, backbone: Backbone, vocabulary: Vocabulary
) -> None:
    nothing = {**step, "decoder_labels": torch.full_like(IDS, IGNORED)}
    loss = rebuilt(decoder, nothing, backbone, vocabulary)
    assert loss.item() == 0.0
    (found,) = torch.autograd.grad(loss, step["bottleneck"])
    assert not found.any()
