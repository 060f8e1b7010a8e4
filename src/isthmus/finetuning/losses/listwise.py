"""List-wise loss: a query's positive against the negatives of its own group."""

from __future__ import annotations

from torch import Tensor

from isthmus.finetuning.losses._base import softmax_over


@softmax_over("group")
def listwise(group: Tensor) -> Tensor:
    """-log softmax(group)[0] of each query, in float32.

    Args:
        group: [queries, group], scores of the query's own passages, its positive first.

    """
    return -group.float().log_softmax(1)[:, 0]
