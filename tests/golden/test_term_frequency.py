"""Term frequency: || head(H_0) - tf / ||tf||₂ ||², tf the counts of the unmasked text's tokens."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from tests.golden.loops import check_all_weights, numerical_gradient, plain_head

from isthmus.nn.backbone import Backbone
from isthmus.pretraining.objectives import ObjectiveSettings, TermFrequency, term_counts
from isthmus.pretraining.step import Step, Vocabulary

# A token thrice and others once; one token; [UNK] and [MASK] as a user typed them; no token.
IDS = torch.tensor(
    [[2, 7, 12, 7, 7, 30, 3], [2, 9, 3, 0, 0, 0, 0], [2, 1, 4, 3, 0, 0, 0], [2, 3, 0, 0, 0, 0, 0]]
)
MASK = (IDS != 0).long()
COUNTS = [Counter([7, 12, 7, 7, 30]), Counter([9]), Counter[int](), Counter[int]()]


def plain(backbone: Backbone, states: torch.Tensor) -> float:
    head = plain_head(backbone)
    loss = 0.0
    for row, counts in enumerate(COUNTS):
        length = math.sqrt(sum(count**2 for count in counts.values()))
        if counts:
            for token, logit in enumerate(head(states[row, 0].tolist())):
                loss += (logit - counts[token] / length) ** 2
    return loss


def test_value_and_gradients(backbone: Backbone, vocabulary: Vocabulary) -> None:
    part = TermFrequency(ObjectiveSettings())
    states = backbone(IDS, MASK)
    step = {"hidden_states": states, "input_ids": IDS}
    assert Step(step, vocabulary).count(part.items).item() == 2, (
        "texts without a token do not count"
    )
    loss = part(Step(step, vocabulary, backbone))[""]
    assert loss.item() == pytest.approx(plain(backbone, states), rel=1e-6)
    leaf = states.detach().requires_grad_()
    (found,) = torch.autograd.grad(
        part(Step({**step, "hidden_states": leaf}, vocabulary, backbone))[""], leaf
    )
    torch.testing.assert_close(
        found, numerical_gradient(lambda: plain(backbone, leaf), leaf), rtol=1e-5, atol=1e-5
    )
    assert not found[2:].any()
    assert not found[:, 1:].any(), "only [CLS] is asked"
    check_all_weights(backbone, loss, lambda: plain(backbone, backbone(IDS, MASK)))


def test_counts_are_of_the_text_before_masking_without_special_tokens(
    backbone: Backbone, vocabulary: Vocabulary
) -> None:
    for row, counts in zip(term_counts(IDS, vocabulary).tolist(), COUNTS, strict=True):
        assert {token: count for token, count in enumerate(row) if count} == counts
    states = backbone(IDS, MASK)
    step = {"hidden_states": states, "input_ids": IDS}
    hidden = {**step, "encoder_ids": torch.full_like(IDS, 4)}
    part = TermFrequency(ObjectiveSettings())
    assert (
        part(Step(hidden, vocabulary, backbone))[""] == part(Step(step, vocabulary, backbone))[""]
    )
