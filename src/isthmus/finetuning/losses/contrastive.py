"""Contrastive loss: a query's own positive against every other passage of the whole batch."""

from __future__ import annotations

import torch.nn.functional as functional
from torch import Tensor

from isthmus.finetuning.losses._base import softmax_over


@softmax_over("scores")
def contrastive(scores: Tensor, targets: Tensor) -> Tensor:
    """-log softmax(scores)[target] of each query, in float32.

    Args:
        scores: [queries, passages], the passages of all queries; -inf leaves one out.
        targets: The column of each query's own positive.

    """
    return functional.cross_entropy(scores.float(), targets, reduction="none")
