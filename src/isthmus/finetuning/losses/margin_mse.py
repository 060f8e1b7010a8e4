"""Margin-MSE: by how much the teacher prefers the positive, learnt by the student."""

from __future__ import annotations

from torch import Tensor


def margin_mse(group: Tensor, teacher: Tensor) -> Tensor:
    """Mean over negatives of ((s_0 - s_j) - (t_0 - t_j))² of each query, in float32.

    Args:
        group: [queries, group], the student's scores, the positive's first (arXiv 2010.02666).
        teacher: [queries, group], the teacher's of the same passages.

    """
    student, taught = (scores.float()[:, :1] - scores.float()[:, 1:] for scores in (group, teacher))
    return (student - taught).square().mean(1)
