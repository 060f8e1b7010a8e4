"""Masked LM: CE of head(H_i) against the original token, at the labelled positions i."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from isthmus.nn.backbone import Backbone
from isthmus.pretrain.masking import IGNORED
from isthmus.pretrain.objectives.masked_lm import MaskedLm
from isthmus.pretrain.parts import ObjectiveSettings, Vocabulary

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


@pytest.fixture
def plain(plain_head: Callable, log_softmax: Callable) -> Callable[[torch.Tensor], float]:
    def compute(states: torch.Tensor) -> float:
        head = plain_head()
        rows = states.tolist()
        loss = 0.0
        for row, labels in enumerate(LABELS.tolist()):
            for place, label in enumerate(labels):
                if label != IGNORED:
                    loss -= log_softmax(head(rows[row][place]), label)
        return loss

    return compute


def test_value_and_count(
    objective: MaskedLm, backbone: Backbone, vocabulary: Vocabulary, plain: Callable
) -> None:
    states = backbone(IDS, MASK)
    step = {"hidden_states": states, "labels": LABELS}
    assert objective.count(step, vocabulary).item() == 4
    found = objective(step, backbone, vocabulary)
    assert list(found) == [""]
    assert found[""].item() == pytest.approx(plain(states), rel=1e-6)


def test_gradient_of_every_hidden_state(
    objective: MaskedLm,
    backbone: Backbone,
    vocabulary: Vocabulary,
    plain: Callable,
    numerical_gradient: Callable,
) -> None:
    states = backbone(IDS, MASK).detach().requires_grad_()
    step = {"hidden_states": states, "labels": LABELS}
    objective(step, backbone, vocabulary)[""].backward()
    expected = numerical_gradient(lambda: plain(states), states)
    torch.testing.assert_close(states.grad, expected, rtol=1e-5, atol=2e-6)
    assert not states.grad[LABELS == IGNORED].any(), "unlabelled positions are not predicted"
    assert states.grad[LABELS != IGNORED].any(1).all()


def test_gradient_of_all_weights(
    objective: MaskedLm, backbone: Backbone, vocabulary: Vocabulary, plain: Callable
) -> None:
    # Along random directions through every parameter: encoder, head and the tied embeddings.
    step = {"hidden_states": backbone(IDS, MASK), "labels": LABELS}
    objective(step, backbone, vocabulary)[""].backward()
    generator = torch.Generator().manual_seed(0)
    parameters = [p for p in backbone.parameters() if p.grad is not None]
    for _ in range(5):
        direction = [torch.randn(p.shape, generator=generator).double() for p in parameters]
        analytic = sum((p.grad * d).sum() for p, d in zip(parameters, direction, strict=True))
        sides = []
        for step_size in (1e-6, -1e-6):
            with torch.no_grad():
                for parameter, along in zip(parameters, direction, strict=True):
                    parameter += step_size * along
                sides.append(plain(backbone(IDS, MASK)))
                for parameter, along in zip(parameters, direction, strict=True):
                    parameter -= step_size * along
        assert analytic.item() == pytest.approx((sides[0] - sides[1]) / 2e-6, rel=1e-4)


def test_a_batch_without_labels_is_zero_and_still_has_gradients(
    objective: MaskedLm, backbone: Backbone, vocabulary: Vocabulary
) -> None:
    # Other processes wait for the gradients of this one.
    states = backbone(IDS, MASK)
    step = {"hidden_states": states, "labels": torch.full_like(IDS, IGNORED)}
    assert objective.count(step, vocabulary).item() == 0
    loss = objective(step, backbone, vocabulary)[""]
    loss.backward()
    assert loss.item() == 0.0
    assert all(not p.grad.any() for p in backbone.parameters() if p.grad is not None)
