"""FLOPS = sum_v (mean over texts |w_v|)²; L1 = mean over texts of sum_v |w_v|; quadratic growth."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.golden.loops import numerical_gradient

from isthmus.errors import SettingsError
from isthmus.finetuning.regularizers import flops, l1, regularizers

Rows = list[list[float]]


def plain_flops(rows: Rows) -> float:
    total = 0.0
    for term in range(len(rows[0])):
        mean = 0.0
        for row in rows:
            mean += abs(row[term]) / len(rows)
        total += mean * mean
    return total


def plain_l1(rows: Rows) -> float:
    total = 0.0
    for row in rows:
        for weight in row:
            total += abs(weight)
    return total / len(rows)


@pytest.mark.parametrize(("function", "plain"), [(flops, plain_flops), (l1, plain_l1)])
def test_value_and_gradient(
    function: Callable[[torch.Tensor], torch.Tensor], plain: Callable[[Rows], float]
) -> None:
    weights = torch.randn(5, 7, generator=torch.Generator().manual_seed(0)).double()
    weights[:, 2] = 0.0  # a term nobody has
    weights[3] = 0.0  # a text without terms counts as a text
    weights.requires_grad_()
    value = function(weights)
    assert value.dtype == torch.float32
    assert value.item() == pytest.approx(plain(weights.tolist()), rel=1e-6)
    (found,) = torch.autograd.grad(value, weights)
    expected = numerical_gradient(lambda: plain(weights.tolist()), weights)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_in_float32_whatever_the_weights_come_in() -> None:
    weights = torch.full((3000, 2), 0.1, dtype=torch.bfloat16)
    exact = float(weights[0, 0])
    assert l1(weights).item() == pytest.approx(2 * exact, rel=1e-5)
    assert flops(weights).item() == pytest.approx(2 * exact**2, rel=1e-5)


def test_weights_grow_quadratically_over_a_third_of_the_steps() -> None:
    (chosen,) = regularizers({"flops": {"documents": 0.6, "queries": 0.3}})
    for progress, share in [(0, 0), (1 / 6, 0.25), (1 / 4, 9 / 16), (1 / 3, 1), (0.7, 1), (1, 1)]:
        assert chosen.weights(progress) == pytest.approx(
            {"flops/documents": 0.6 * share, "flops/queries": 0.3 * share}
        )


def test_the_ramp_is_a_setting_and_a_side_without_weight_is_not_computed() -> None:
    (at_once,) = regularizers({"l1": {"queries": 0.1, "ramp": 0.0}})
    assert at_once.weights(0.0) == {"l1/queries": 0.1}
    (slow,) = regularizers({"l1": {"queries": 0.1, "ramp": 1.0}})
    assert slow.weights(0.5) == pytest.approx({"l1/queries": 0.025})
    assert slow.weights(0.0).keys() == {"l1/queries"}, "a weight of 0 at first is still a weight"
    rows = torch.ones(2, 3)
    assert set(slow(rows, rows)) == {"l1/queries"}
    assert slow(2 * rows, rows)["l1/queries"].item() == 6.0, "queries come first"


@pytest.mark.parametrize(
    ("chosen", "what", "allowed"),
    [
        ({"flop": {}}, "there is no regularizer named 'flop'", "flops, l1"),
        ({"l1": {"query": 1.0}}, "unknown key 'regularizers.l1.query'", "queries"),
        ({"l1": {"queries": -1.0}}, "regularizers.l1.queries = -1.0", "weight on the queries"),
        ({"flops": 0.1}, "regularizers.flops = 0.1 does not say whether", "documents"),
    ],
)
def test_what_cannot_be_used(chosen: dict[str, Any], what: str, allowed: str) -> None:
    with pytest.raises(SettingsError) as caught:
        regularizers(chosen)
    assert what in caught.value.what
    assert allowed in str(caught.value)
