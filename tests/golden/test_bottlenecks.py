"""Bottlenecks: H_0; W H_0 + c; stop_gradient(E)ᵀ a, a the weights of a lexicon."""

from __future__ import annotations

import math
from typing import Literal

import pytest
import torch
from tests.golden.loops import (
    check_all_weights,
    check_slopes,
    linear,
    numerical_gradient,
    plain_head,
)

from isthmus.nn.backbone import Backbone
from isthmus.pretraining.bottlenecks import (
    Cls,
    Lexicon,
    LexiconSettings,
    Mean,
    ProjectedCls,
    shares,
)
from isthmus.pretraining.step import Step, Vocabulary
from isthmus.text.tokenizer import Tokenizer

Form = Literal["softmax", "saturated"]
# Four tokens, two of them hidden from the encoder; an [UNK] between two others; nothing.
IDS = torch.tensor([[2, 7, 12, 40, 30, 3], [2, 9, 1, 11, 3, 0], [2, 3, 0, 0, 0, 0]])
HIDDEN = torch.tensor([[2, 4, 12, 4, 30, 3], [2, 9, 1, 11, 3, 0], [2, 3, 0, 0, 0, 0]])
MASK = (IDS != 0).long()
INSIDE = [[1, 2, 3, 4], [1, 3], []]
# A loss that meets every entry of the vectors differently.
FACTORS = torch.randn(3, 8, generator=torch.Generator().manual_seed(2)).double()
every_form = pytest.mark.parametrize("form", ["softmax", "saturated"])


def test_cls(backbone: Backbone, vocabulary: Vocabulary) -> None:
    states = backbone(HIDDEN, MASK)
    found = Cls(None)(Step({"hidden_states": states}, vocabulary, backbone))
    assert torch.equal(found, states[:, 0])
    assert found.requires_grad, "the decoder teaches the encoder"


def test_mean(backbone: Backbone, vocabulary: Vocabulary) -> None:
    states = backbone(HIDDEN, MASK)
    step = {"hidden_states": states, "attention_mask": MASK}
    found = Mean(None)(Step(step, vocabulary, backbone))
    for row, length in enumerate(MASK.sum(1).tolist()):
        wanted = sum(states[row, place] for place in range(length)) / length
        torch.testing.assert_close(found[row], wanted)
    assert found.requires_grad


def test_projected_cls(backbone: Backbone, vocabulary: Vocabulary, tokenizer: Tokenizer) -> None:
    part = ProjectedCls(None)
    part.build(backbone, tokenizer)
    part.double()
    assert part.projection.weight.shape == (8, 8)
    assert not part.projection.bias.any()
    torch.nn.init.normal_(part.projection.bias)
    states = backbone(HIDDEN, MASK).detach().requires_grad_()

    def plain() -> float:
        project = linear(part.projection)
        loss = 0.0
        for row, factors in zip(states[:, 0].tolist(), FACTORS.tolist(), strict=True):
            for factor, value in zip(factors, project(row), strict=True):
                loss += factor * value
        return loss

    loss = (part(Step({"hidden_states": states}, vocabulary, backbone)) * FACTORS).sum()
    assert loss.item() == pytest.approx(plain())
    tensors = [states, part.projection.weight, part.projection.bias]
    for tensor, found in zip(tensors, torch.autograd.grad(loss, tensors), strict=True):
        torch.testing.assert_close(found, numerical_gradient(plain, tensor), rtol=1e-6, atol=1e-8)


def plain(backbone: Backbone, states: torch.Tensor, form: Form, embeddings: torch.Tensor) -> float:
    """The loss, with the E of b given apart from that of the head."""
    head = plain_head(backbone)
    matrix = embeddings.tolist()
    loss = 0.0
    for row, inside in enumerate(INSIDE):
        if not inside:
            continue
        logits = [head(states[row, place].tolist()) for place in inside]
        largest = [max(column) for column in zip(*logits, strict=True)]
        if form == "softmax":
            weights = [math.exp(value) for value in largest]
        else:
            weights = [math.log(1 + max(value, 0.0)) for value in largest]
        for weight, vector in zip(weights, matrix, strict=True):
            for factor, value in zip(FACTORS[row].tolist(), vector, strict=True):
                loss += factor * weight / sum(weights) * value
    return loss


def lexicon_loss(
    states: torch.Tensor, form: Form, backbone: Backbone, vocabulary: Vocabulary
) -> torch.Tensor:
    part = Lexicon(LexiconSettings(form=form, embedded=False))
    step = {"hidden_states": states, "input_ids": IDS, "encoder_ids": HIDDEN}
    vectors: torch.Tensor = part(Step(step, vocabulary, backbone))
    assert not vectors[2].any(), "no token, no weight"
    return (vectors.double() * FACTORS).sum()


@every_form
def test_the_lexicons_value_and_gradient_of_every_state(
    form: Form, backbone: Backbone, vocabulary: Vocabulary
) -> None:
    states = backbone(HIDDEN, MASK).detach().requires_grad_()
    fixed = backbone.word_embeddings.detach().clone()
    loss = lexicon_loss(states, form, backbone, vocabulary)
    assert loss.item() == pytest.approx(plain(backbone, states, form, fixed), rel=1e-5)
    (found,) = torch.autograd.grad(loss, states)
    expected = numerical_gradient(lambda: plain(backbone, states, form, fixed), states)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
    inside = torch.zeros_like(IDS, dtype=torch.bool)
    for row, places in enumerate(INSIDE):
        inside[row, places] = True
    assert not found[~inside].any(), "neither special tokens nor padding"
    assert found[0, [1, 3]].any(), "positions that the encoder sees as [MASK] take part"


@every_form
def test_only_the_embeddings_in_the_product_are_detached(
    form: Form, backbone: Backbone, vocabulary: Vocabulary
) -> None:
    states = backbone(HIDDEN, MASK).detach()
    embeddings = backbone.word_embeddings
    fixed = embeddings.detach().clone()
    loss = lexicon_loss(states, form, backbone, vocabulary)
    (found,) = torch.autograd.grad(loss, embeddings, retain_graph=True)
    assert found.any(), "the head's own E learns"
    # E moves in the head alone. A few of its rows are enough, and each entry of them is checked.
    for token in (0, 7, 12, 40):
        expected = numerical_gradient(
            lambda: plain(backbone, states, form, fixed), embeddings[token]
        )
        torch.testing.assert_close(found[token], expected, rtol=1e-4, atol=1e-6)
    both = numerical_gradient(lambda: plain(backbone, states, form, embeddings), embeddings[7])
    assert not torch.allclose(found[7], both, rtol=1e-2), "the test tells both apart"
    head = [p for name, p in backbone.named_parameters() if name.startswith("model.cls")]
    check_slopes(loss, lambda: plain(backbone, states, form, fixed), [*head, embeddings])


@every_form
def test_the_encoder_learns_through_the_lexicon(
    form: Form, backbone: Backbone, vocabulary: Vocabulary
) -> None:  # fmt: skip
    fixed = backbone.word_embeddings.detach().clone()
    loss = lexicon_loss(backbone(HIDDEN, MASK), form, backbone, vocabulary)
    check_all_weights(backbone, loss, lambda: plain(backbone, backbone(HIDDEN, MASK), form, fixed))


@every_form
def test_an_embedded_lexicon_takes_the_place_of_the_first_word(
    form: Form, backbone: Backbone, vocabulary: Vocabulary
) -> None:
    states = backbone(HIDDEN, MASK).detach().requires_grad_()
    step = {"hidden_states": states, "input_ids": IDS, "encoder_ids": HIDDEN}
    bare, embedded = (
        Lexicon(LexiconSettings(form=form, embedded=value))(
            Step(step, vocabulary, backbone)
        ).double()
        for value in (False, True)
    )
    layer = backbone.encoder.embeddings
    rows = bare + layer.position_embeddings.weight[0] + layer.token_type_embeddings.weight[0]
    centred = rows - rows.mean(1, keepdim=True)
    normed = centred / (centred.pow(2).mean(1, keepdim=True) + layer.LayerNorm.eps).sqrt()
    expected = normed * layer.LayerNorm.weight + layer.LayerNorm.bias
    torch.testing.assert_close(embedded, expected, rtol=1e-5, atol=1e-6)
    found, wanted = (
        torch.autograd.grad((vectors * FACTORS).sum(), states, retain_graph=True)[0]
        for vectors in (embedded, expected)
    )
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-6)
    assert found.any(), "the decoder teaches the encoder"


def test_weights_are_a_distribution(vocabulary: Vocabulary) -> None:
    generator = torch.Generator().manual_seed(3)
    largest = torch.randn(3, vocabulary.size, generator=generator)
    known = torch.tensor([[True], [True], [False]])
    for form in ("softmax", "saturated"):
        weights = shares(largest, known, form)
        assert weights.dtype == torch.float32
        assert (weights >= 0).all()
        assert weights.sum(1).tolist() == pytest.approx([1, 1, 0], abs=1e-6)
    saturated = shares(largest, known, "saturated")
    assert (saturated[0] == 0).any(), "a negative maximum has no weight"
    # Every logit negative: nothing to share out, nothing to divide by, and finite gradients.
    negative = (-largest.abs() - 1).requires_grad_()
    weights = shares(negative, known, "saturated")
    assert not weights.any()
    (found,) = torch.autograd.grad(weights.sum(), negative)
    assert found.isfinite().all()
