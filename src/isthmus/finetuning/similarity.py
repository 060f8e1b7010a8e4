"""Scores of queries and passages, from which losses are computed."""

from __future__ import annotations

import torch
from torch import Tensor


def similarities(
    queries: Tensor,
    passages: Tensor,
    targets: Tensor,
    keys: Tensor,
    temperature: float,
    documents: Tensor | None = None,
) -> Tensor:
    """q·pᵀ / temperature of every query and passage, in float32; copies of the positive are -inf.

    Args:
        queries: [queries, width].
        passages: [passages, width], positives and negatives of all queries, flattened.
        targets: The row of each query's own positive.
        keys: Equal for passages of equal text. A copy of the positive elsewhere in the batch is
            no negative: it is left out.
        temperature: Scores are divided by it.
        documents: Equal for passages of one document, which are left out as copies are; None: all
            are whole documents.

    """
    scores = queries.float() @ passages.float().T / temperature
    same = keys[None, :] == keys[targets][:, None]
    if documents is not None:
        same = same | (documents[None, :] == documents[targets][:, None])
    own = torch.arange(len(passages), device=scores.device)[None, :] == targets[:, None]
    return scores.masked_fill(same & ~own, float("-inf"))


def group_similarities(queries: Tensor, passages: Tensor, temperature: float) -> Tensor:
    """q·p / temperature of every query and its own passages, [queries, group] in float32.

    Args:
        queries: [queries, width].
        passages: [queries · group, width], the first query's group, then the second's.
        temperature: Scores are divided by it.

    """
    groups = passages.float().view(len(queries), -1, passages.shape[1])
    return torch.einsum("qw,qgw->qg", queries.float(), groups) / temperature
