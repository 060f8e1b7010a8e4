"""Keep: 1 - cosine of every passage's vector to the one that the encoder gave it at the start."""

from __future__ import annotations

import torch.nn.functional as functional
from torch import Tensor


def keep(passages: Tensor, start_passages: Tensor) -> Tensor:
    """The mean over each query's own passages, [queries].

    Args:
        passages: [queries, group, width], as the encoder represents them now.
        start_passages: The same passages by the encoder as it was before training.

    """
    return (1 - functional.cosine_similarity(passages, start_passages, dim=2)).mean(1)
