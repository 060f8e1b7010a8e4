"""Masked LM: CE of head(H_i) against the original token, at the labelled positions i."""

from __future__ import annotations

import pytest
import torch
from tests.golden.loops import check_all_weights, log_softmax, numerical_gradient, plain_head

from isthmus.nn.backbone import Backbone
from isthmus.pretraining.objectives import MaskedLm, ObjectiveSettings
from isthmus.pretraining.step import IGNORED, Step, Vocabulary

# Three texts of unlike length: three labels, one, none.
LABELS = torch.tensor(
    [
        [IGNORED, 7, IGNORED, 12, 7, IGNORED],
        [IGNORED, IGNORED, 30, IGNORED, IGNORED, IGNORED],
        [IGNORED] * 6,
    ]
)
MASK = torch.tensor([[1] * 6, [1] * 4 + [0] * 2, [1] * 3 + [0] * 3])
IDS = torch.tensor([[2, 4, 9, 4, 4, 3], [2, 8, 4, 3, 0, 0], [2, 11, 3, 0, 0, 0]])


@pytest.fixture
def objective() -> MaskedLm:
    return MaskedLm(ObjectiveSettings())


def plain(backbone: Backbone, states: torch.Tensor) -> float:
    head = plain_head(backbone)
    rows = states.tolist()
    loss = 0.0
    for row, labels in enumerate(LABELS.tolist()):
        for place, label in enumerate(labels):
            if label != IGNORED:
                loss -= log_softmax(head(rows[row][place]), label)
    return loss


def test_value_and_count(objective: MaskedLm, backbone: Backbone, vocabulary: Vocabulary) -> None:
    states = backbone(IDS, MASK)
    step = {"hidden_states": states, "labels": LABELS}
    assert Step(step, vocabulary).count(objective.items).item() == 4
    found = objective(Step(step, vocabulary, backbone))
    assert list(found) == [""]
    assert found[""].item() == pytest.approx(plain(backbone, states), rel=1e-6)


def test_gradient_of_every_hidden_state(
    objective: MaskedLm, backbone: Backbone, vocabulary: Vocabulary
) -> None:
    states = backbone(IDS, MASK).detach().requires_grad_()
    step = {"hidden_states": states, "labels": LABELS}
    (found,) = torch.autograd.grad(objective(Step(step, vocabulary, backbone))[""], states)
    expected = numerical_gradient(lambda: plain(backbone, states), states)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=2e-6)
    assert not found[LABELS == IGNORED].any(), "unlabelled positions are not predicted"
    assert found[LABELS != IGNORED].any(1).all()


def test_gradient_of_all_weights(
    objective: MaskedLm, backbone: Backbone, vocabulary: Vocabulary
) -> None:
    step = {"hidden_states": backbone(IDS, MASK), "labels": LABELS}
    loss = objective(Step(step, vocabulary, backbone))[""]
    check_all_weights(backbone, loss, lambda: plain(backbone, backbone(IDS, MASK)))


def test_a_batch_without_labels_is_zero_and_still_has_gradients(
    objective: MaskedLm, backbone: Backbone, vocabulary: Vocabulary
) -> None:
    # Other processes wait for the gradients of this one.
    states = backbone(IDS, MASK)
    step = {"hidden_states": states, "labels": torch.full_like(IDS, IGNORED)}
    assert Step(step, vocabulary).count(objective.items).item() == 0
    loss = objective(Step(step, vocabulary, backbone))[""]
    assert loss.item() == 0.0
    found = torch.autograd.grad(loss, list(backbone.parameters()), allow_unused=True)
    assert sum(gradient is not None for gradient in found) > len(found) / 2
    assert not any(gradient.any() for gradient in found if gradient is not None)
