"""Replaced token: CE of head(H_i) against the original token, wherever a token is not special."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.golden.loops import check_all_weights, log_softmax, numerical_gradient, plain_head

from isthmus.nn.backbone import Backbone
from isthmus.nn.heads import Prediction
from isthmus.pretraining.objectives import ObjectiveSettings, ReplacedToken
from isthmus.pretraining.step import Step, Vocabulary

IDS = torch.tensor([[2, 7, 12, 7, 30, 3], [2, 9, 1, 11, 3, 0], [2, 3, 0, 0, 0, 0]])
REPLACED = torch.tensor([[2, 7, 13, 7, 31, 3], [2, 14, 1, 11, 3, 0], [2, 3, 0, 0, 0, 0]])
MASK = (IDS != 0).long()
PLACES = [[1, 2, 3, 4], [1, 3], []]


def plain(backbone: Backbone, states: torch.Tensor) -> float:
    head = plain_head(backbone)
    loss = 0.0
    for row, places in enumerate(PLACES):
        for place in places:
            loss -= log_softmax(head(states[row, place].tolist()), int(IDS[row, place]))
    return loss


def test_value_count_and_gradients(backbone: Backbone, vocabulary: Vocabulary) -> None:
    part = ReplacedToken(ObjectiveSettings())
    states = backbone(REPLACED, MASK)
    step = {"hidden_states": states, "input_ids": IDS, "encoder_ids": REPLACED}
    assert Step(step, vocabulary).count(part.items).item() == 6
    loss = part(Step(step, vocabulary, backbone))[""]
    assert loss.item() == pytest.approx(plain(backbone, states), rel=1e-6)
    leaf = states.detach().requires_grad_()
    again = part(Step({**step, "hidden_states": leaf}, vocabulary, backbone))[""]
    (found,) = torch.autograd.grad(again, leaf)
    expected = numerical_gradient(lambda: plain(backbone, leaf), leaf)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=2e-6)
    assert not found[vocabulary.is_special(IDS)].any()
    check_all_weights(backbone, loss, lambda: plain(backbone, backbone(REPLACED, MASK)))


def test_restored_counts_replacements_that_are_found_out(vocabulary: Vocabulary) -> None:
    # Told right: a token left alone, a replaced one, a replaced one. Told wrong: a token left
    # alone, and a replaced one that is believed.
    told = [[2, 7, 12, 8, 31, 3], [2, 9, 1, 12, 3, 0], [2, 3, 0, 0, 0, 0]]
    logits = torch.nn.functional.one_hot(torch.tensor(told), vocabulary.size).double()
    step = {"hidden_states": logits.requires_grad_(), "input_ids": IDS, "encoder_ids": REPLACED}
    identity = torch.eye(vocabulary.size, dtype=torch.float64)
    unchanged: Any = SimpleNamespace(predict=lambda states: Prediction(states, identity, None))
    found = ReplacedToken(ObjectiveSettings())(Step(step, vocabulary, unchanged))["restored"]
    assert found.item() == 2
    assert not found.requires_grad, "a number for the log"
