"""FLOPS: what an average pair costs to score; falls hardest on terms that many texts share."""

from __future__ import annotations

from torch import Tensor


def flops(weights: Tensor) -> Tensor:
    """sum_v (mean over texts |w_v|)² of [texts, vocabulary], in float32 (Paria et al., 2020)."""
    return weights.float().abs().mean(0).square().sum()
