"""Keep similarities: the squared change of a passage's cosine to every other of the batch."""

from __future__ import annotations

import torch.nn.functional as functional
from torch import Tensor


def keep_similarities(passages: Tensor, start_passages: Tensor) -> Tensor:
    """The mean over the passages of this process's batch, by query, [queries].

    Args:
        passages: [queries, group, width], as the encoder represents them now.
        start_passages: The same passages by the encoder as it was before training.

    """
    queries, group, _ = passages.shape
    now, then = (
        functional.normalize(vectors.flatten(0, 1), dim=1) for vectors in (passages, start_passages)
    )
    changes = (now @ now.T - then @ then.T).square().mean(1)
    return changes.view(queries, group).mean(1)
