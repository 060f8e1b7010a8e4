"""Span contrast: -log of the document's other text among all other texts, by dot product."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from isthmus.nn.backbone import Backbone
from isthmus.pretrain.objectives.span_contrast import (
    SpanContrast,
    SpanContrastSettings,
    span_contrast,
)
from isthmus.pretrain.vocabulary import Vocabulary

PARTNER = [3, 4, 5, 0, 1, 2]


def vectors(rows: int = 6) -> torch.Tensor:
    return torch.randn(rows, 4, generator=torch.Generator().manual_seed(1)).double()


def plain(everyone: torch.Tensor, partner: dict[int, int], temperature: float) -> float:
    rows = everyone.tolist()
    loss = 0.0
    for own, other in partner.items():
        scores = {
            place: sum(x * y for x, y in zip(rows[own], row, strict=True)) / temperature
            for place, row in enumerate(rows)
            if place != own
        }
        total = sum(math.exp(score) for score in scores.values())
        loss -= math.log(math.exp(scores[other]) / total)
    return loss


@pytest.mark.parametrize("temperature", [1.0, 0.3])
def test_value_count_and_gradient(
    temperature: float,
    backbone: Backbone,
    vocabulary: Vocabulary,
    numerical_gradient: Callable[..., torch.Tensor],
) -> None:
    states = torch.stack([vectors(), torch.full((6, 4), 9.0).double()], 1).requires_grad_()
    step = {"hidden_states": states, "partner": torch.tensor(PARTNER)}
    part = SpanContrast(SpanContrastSettings(temperature=temperature))
    assert part.count(step, vocabulary).item() == 6

    def expected() -> float:
        return plain(states[:, 0], dict(enumerate(PARTNER)), temperature)

    loss = part(step, backbone, vocabulary)[""]
    assert loss.item() == pytest.approx(expected(), rel=1e-5)
    (found,) = torch.autograd.grad(loss, states)
    torch.testing.assert_close(found, numerical_gradient(expected, states), rtol=1e-4, atol=1e-5)
    assert not found[:, 1].any(), "only [CLS]"


@pytest.mark.parametrize("first", [0, 2, 4])
def test_texts_of_other_processes_are_negatives(first: int) -> None:
    """Rows `first` and on are one process's two texts of one document."""
    everyone = vectors()
    mine = everyone[first : first + 2]
    settings = SpanContrastSettings()
    found = span_contrast(mine.float(), everyone.float(), torch.tensor([1, 0]), first, settings)
    expected = plain(everyone, {first: first + 1, first + 1: first}, 1.0)
    assert found.item() == pytest.approx(expected, rel=1e-5)


def test_one_document_alone_has_nothing_to_tell_apart() -> None:
    pair = vectors(2).float().requires_grad_()
    loss = span_contrast(pair, pair, torch.tensor([1, 0]), 0, SpanContrastSettings())
    assert loss.item() == 0.0
    (found,) = torch.autograd.grad(loss, pair)
    assert not found.any()
