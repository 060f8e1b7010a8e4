"""Distillation: the teacher's distribution over a query's own group, learnt by the student."""

from __future__ import annotations

import torch.nn.functional as functional
from torch import Tensor

from isthmus.finetuning.losses._base import softmax_over


@softmax_over("group")
def kl(group: Tensor, teacher: Tensor) -> Tensor:
    """KL(softmax(teacher) || softmax(group)) of each query, summed over its group, in float32.

    Args:
        group: [queries, group], the student's scores.
        teacher: [queries, group], the teacher's of the same passages.

    """
    student, taught = group.float().log_softmax(1), teacher.float().log_softmax(1)
    return functional.kl_div(student, taught, reduction="none", log_target=True).sum(1)
