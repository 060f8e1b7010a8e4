"""Contrastive loss: a query's own positive against every other passage of the whole batch."""

from __future__ import annotations

import torch
import torch.nn.functional as functional
from torch import Tensor


def contrastive(
    queries: Tensor, passages: Tensor, targets: Tensor, keys: Tensor, temperature: float
) -> Tensor:
    """-log softmax(q·pᵀ / temperature)[target] of each query, in float32.

    Args:
        queries: [queries, width].
        passages: [passages, width], positives and negatives of all queries, flattened.
        targets: The row of each query's own positive.
        keys: Equal for passages of equal text. A copy of the positive elsewhere in the batch is
            no negative: it is left out.
        temperature: Scores are divided by it.

    """
    scores = queries.float() @ passages.float().T / temperature
    same = keys[None, :] == keys[targets][:, None]
    own = torch.arange(len(passages), device=scores.device)[None, :] == targets[:, None]
    scores = scores.masked_fill(same & ~own, float("-inf"))
    return functional.cross_entropy(scores, targets, reduction="none")
