"""Replaced token: CE of head(H_i) against the original token, wherever a token is not special."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from isthmus.nn.backbone import Backbone
from isthmus.pretrain.objectives.replaced_token import ReplacedToken
from isthmus.pretrain.parts import ObjectiveSettings
from isthmus.pretrain.vocabulary import Vocabulary

IDS = torch.tensor([[2, 7, 12, 7, 30, 3], [2, 9, 1, 11, 3, 0], [2, 3, 0, 0, 0, 0]])
REPLACED = torch.tensor([[2, 7, 13, 7, 31, 3], [2, 14, 1, 11, 3, 0], [2, 3, 0, 0, 0, 0]])
MASK = (IDS != 0).long()
PLACES = [[1, 2, 3, 4], [1, 3], []]


@pytest.fixture
def plain(
    plain_head: Callable[..., Any], log_softmax: Callable[..., float]
) -> Callable[[torch.Tensor], tuple[float, int]]:
    """The loss, and how many of the replaced tokens have the highest logit."""

    def compute(states: torch.Tensor) -> tuple[float, int]:
        head = plain_head()
        loss, restored = 0.0, 0
        for row, places in enumerate(PLACES):
            for place in places:
                scores = head(states[row, place].tolist())
                token = int(IDS[row, place])
                loss -= log_softmax(scores, token)
                restored += bool(IDS[row, place] != REPLACED[row, place]) and (
                    scores[token] == max(scores)
                )
        return loss, restored

    return compute


def test_value_count_and_gradients(
    backbone: Backbone,
    vocabulary: Vocabulary,
    plain: Callable[[torch.Tensor], tuple[float, int]],
    numerical_gradient: Callable[..., torch.Tensor],
    check_all_weights: Callable[..., None],
) -> None:
    part = ReplacedToken(ObjectiveSettings())
    states = backbone(REPLACED, MASK)
    step = {"hidden_states": states, "input_ids": IDS, "encoder_ids": REPLACED}
    assert part.count(step, vocabulary).item() == 6
    loss = part(step, backbone, vocabulary)[""]
    assert loss.item() == pytest.approx(plain(states)[0], rel=1e-6)
    leaf = states.detach().requires_grad_()
    again = part({**step, "hidden_states": leaf}, backbone, vocabulary)[""]
    (found,) = torch.autograd.grad(again, leaf)
    expected = numerical_gradient(lambda: plain(leaf)[0], leaf)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=2e-6)
    assert not found[vocabulary.is_special(IDS)].any()
    check_all_weights(loss, lambda: plain(backbone(REPLACED, MASK))[0])


def test_restored_counts_replacements_that_are_found_out(
    backbone: Backbone, vocabulary: Vocabulary, plain: Callable[[torch.Tensor], tuple[float, int]]
) -> None:
    part = ReplacedToken(ObjectiveSettings())
    generator = torch.Generator().manual_seed(0)
    seen = set()
    for _ in range(40):
        states = 3 * torch.randn(3, 6, 8, generator=generator).double()
        # The state that the head turns into a token is near that token's own row of E.
        states += 9 * backbone.word_embeddings.detach()[IDS]
        step = {"hidden_states": states, "input_ids": IDS, "encoder_ids": REPLACED}
        found = part(step, backbone, vocabulary)["restored"]
        assert not found.requires_grad
        assert found.item() == plain(states)[1]
        seen.add(found.item())
    assert len(seen) > 1, "the states tell something apart"
