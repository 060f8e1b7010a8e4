"""L1: the weight of an average text, whichever terms carry it."""

from __future__ import annotations

from torch import Tensor


def l1(weights: Tensor) -> Tensor:
    """Mean over texts of sum_v |w_v| of [texts, vocabulary], in float32."""
    return weights.float().abs().sum(1).mean()
