"""Reconstruction: CE through each decoder; layers, streams, labels and heads written as loops."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.golden.loops import check_slopes, numerical_gradient, plain_reconstruction

from isthmus.nn.backbone import Backbone
from isthmus.pretraining.decoders import Decoder
from isthmus.pretraining.objectives import ObjectiveSettings, Reconstruction
from isthmus.pretraining.registries import DECODERS
from isthmus.pretraining.step import IGNORED, Step, Vocabulary
from isthmus.text.tokenizer import Tokenizer

I = IGNORED  # noqa: E741
# Two texts of two documents: a word of two pieces; an [UNK] inside; one token; none at all.
IDS = torch.tensor(
    [[2, 7, 40, 45, 12, 3], [2, 9, 1, 11, 3, 0], [2, 8, 3, 0, 0, 0], [2, 3] + [0] * 4]
)
MASK = (IDS != 0).long()
WORDS = torch.tensor([[-1, 0, 1, 1, 2, -1], [-1, 0, 1, 2, -1, -1], [-1, 0] + [-1] * 4, [-1] * 6])
PARTNER = [2, 3, 0, 1]
# What corruptions give, on either side: hidden tokens, one of them unchanged, one replaced.
SEEN = torch.tensor(
    [[2, 7, 4, 45, 21, 3], [2, 4, 1, 11, 3, 0], [2, 4, 3, 0, 0, 0], [2, 3] + [0] * 4]
)
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
def step(decoder: Decoder, vocabulary: Vocabulary, backbone: Backbone) -> Step:
    """What a decoder is given, with a vector for each text and states half-way up."""
    generator = torch.Generator().manual_seed(6)
    batch = {
        "input_ids": IDS, "encoder_ids": SEEN, "decoder_ids": HIDDEN, "attention_mask": MASK,
        "words": WORDS, "labels": ENCODER_LABELS,
        "keys": torch.tensor([3, 1, 4, 15]), "partner": torch.tensor(PARTNER),
        "bottleneck": torch.randn(4, 8, generator=generator).double().requires_grad_(),
        "middle_states": torch.randn(4, 6, 8, generator=generator).double().requires_grad_(),
    }  # fmt: skip
    if type(decoder).__name__ == "Bidirectional":
        batch |= {"decoder_labels": LABELS}
    step = Step(batch, vocabulary, backbone)
    return step | decoder.prepare(step)


def plain(backbone: Backbone, part: Decoder, step: Step) -> float:
    """The summed cross-entropy at the expected labels."""
    return plain_reconstruction(backbone, part, step, EXPECTED[type(part).__name__.lower()])


def rebuilt(decoder: Decoder, step: Step) -> Any:
    found = Reconstruction(ObjectiveSettings())(decoder(step))
    assert list(found) == [""]
    return found[""]


every_decoder = pytest.mark.parametrize(
    "decoder", CASES, indirect=True, ids=lambda case: f"{case[0]}-{case[1]}"
)


@every_decoder
def test_labels_value_and_count(decoder: Decoder, step: Step, backbone: Backbone) -> None:
    expected = EXPECTED[type(decoder).__name__.lower()]
    assert torch.equal(step["decoder_labels"], expected)
    count = step.count(Reconstruction.items)
    assert count.item() == (expected != IGNORED).sum()
    loss = rebuilt(decoder, step)
    assert loss.item() == pytest.approx(plain(backbone, decoder, step), rel=1e-6)


@every_decoder
def test_gradient_of_the_bottleneck(decoder: Decoder, step: Step, backbone: Backbone) -> None:
    vectors = step["bottleneck"]
    (found,) = torch.autograd.grad(rebuilt(decoder, step), vectors)
    expected = numerical_gradient(lambda: plain(backbone, decoder, step), vectors)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=2e-6)


@every_decoder
def test_gradient_of_all_weights(decoder: Decoder, step: Step, backbone: Backbone) -> None:
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
    loss = rebuilt(decoder, step)
    check_slopes(loss, lambda: plain(backbone, decoder, step), moved, still)


@every_decoder
def test_a_batch_without_labels_is_zero_and_still_has_gradients(
    decoder: Decoder, step: Step, backbone: Backbone
) -> None:
    nothing = step | {"decoder_labels": torch.full_like(IDS, IGNORED)}
    loss = rebuilt(decoder, nothing)
    assert loss.item() == 0.0
    (found,) = torch.autograd.grad(loss, step["bottleneck"])
    assert not found.any()
