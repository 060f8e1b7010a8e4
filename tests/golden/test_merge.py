"""Merge: share · trained + (1 - share) · start, with the largest share that documents bear."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from isthmus.finetuning.merge import Merger, largest_share, set_average, weights_of
from isthmus.finetuning.settings import MergeSettings


def module(value: float) -> nn.Linear:
    made = nn.Linear(2, 1)
    with torch.no_grad():
        made.weight.copy_(torch.tensor([[value, 1.0]]))
        made.bias.fill_(2 * value)
    return made


def test_average() -> None:
    start, trained = (weights_of([module(value)]) for value in (1.0, 3.0))
    found = module(0.0)
    set_average([found], start, trained, 0.25)
    assert found.weight.tolist() == [[1.5, 1.0]]
    assert found.bias.tolist() == [3.0]


@pytest.mark.parametrize(("most", "share"), [(1.0, 1.0), (0.5, 0.7), (0.005, 0.05), (0.0001, 0.0)])
def test_largest_share(most: float, share: float) -> None:
    tried = []

    def change(share: float) -> float:
        tried.append(share)
        return share**2

    assert largest_share(change, most, 1.0) == share
    assert largest_share(change, most, 0.3) == min(share, 0.3)
    assert len(tried) <= 9


def merger(settings: MergeSettings, gains: bool = True) -> tuple[Merger, nn.Linear]:
    """Training turns two documents, of a cosine of .5, by 90 degrees."""
    trained = module(3.0)

    def vectors() -> torch.Tensor:
        angle = (trained.weight[0, 0] - 1) / 2 * torch.pi / 2
        both = torch.stack([angle, angle + torch.pi / 3])
        return torch.stack([both.cos(), both.sin()], 1) * torch.tensor([[1.0], [2.0]])

    def measure() -> dict[str, float]:
        change = trained.weight[0, 0].item() - 1
        return {"RR@10": 0.5 + (0.1 if gains else -0.1) * change}

    return Merger(settings, [trained], weights_of([module(1.0)]), vectors, measure), trained


def test_the_share_that_documents_bear() -> None:
    merge, found = merger(MergeSettings(max_change=0.2))
    result: dict[str, Any] = merge()
    # 1 - cos(.25 · 90°) is .076, 1 - cos(.3 · 90°) .109; the two are 1 - .5 apart.
    assert result["share"] == 0.25
    assert result["change"] == pytest.approx((1 - 0.92388) / 0.5, abs=2e-5)
    assert found.weight.tolist() == [[1.5, 1.0]]
    assert result["before"] == pytest.approx(0.5)
    assert result["after"] == pytest.approx(0.55)


def test_the_weights_are_those_of_the_share_without_queries_too() -> None:
    merge, found = merger(MergeSettings(max_change=0.2))
    assert replace(merge, measure=None)()["share"] == 0.25
    assert found.weight.tolist() == [[1.5, 1.0]]


def test_no_more_is_taken_over_than_the_largest_share() -> None:
    merge, found = merger(MergeSettings(max_change=0.2, max_share=0.1))
    assert merge()["share"] == 0.1
    assert found.weight.tolist() == [[pytest.approx(1.2), 1.0]]


def test_a_fixed_share() -> None:
    merge, found = merger(MergeSettings(share=0.5))
    assert merge()["share"] == 0.5
    assert found.weight.tolist() == [[2.0, 1.0]]


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (MergeSettings(max_change=0.1), "queries"),
        (MergeSettings(max_change=0.0), "change"),
    ],
)
def test_kept_as_it_was(
    settings: MergeSettings, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    merge, found = merger(settings, gains=False)
    result = merge()
    assert (result["share"], result["reason"]) == (0, reason)
    assert found.weight.tolist() == [[1.0, 1.0]]
    assert "UNCHANGED" in capsys.readouterr().err


def test_every_try_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    merge, _ = merger(MergeSettings(max_change=0.2))
    merge()
    # The start, three shares, and the queries before and after.
    assert "try averages of the weights: 6, " in capsys.readouterr().err
