"""What a text says about the vocabulary: for every term, the largest logit of its positions."""

from __future__ import annotations

import torch
from torch import Tensor

from isthmus.nn.backbone import Backbone

# Logits held at once: [rows, length, vocabulary] of a whole batch would be gigabytes. A GPU has
# them, and is kept waiting by small pieces.
_ON_CPU, _ON_GPU = 1 << 26, 1 << 29


def largest_logits(backbone: Backbone, states: Tensor, inside: Tensor) -> Tensor:
    """max_i head(H_i) over the positions inside, [rows, vocabulary] in float32; 0 where none is.

    Some rows at a time, and of these only the place of each maximum is kept for the backward pass:
    training holds no more logits than encoding.
    """
    # Positions outside repeat one inside, which changes no maximum: masking width numbers is
    # cheaper than masking as many logits as there are terms.
    first = states[torch.arange(len(states), device=states.device), inside.int().argmax(1)]
    states = torch.where(inside[:, :, None], states, first[:, None])
    room = _ON_CPU if states.device.type == "cpu" else _ON_GPU
    step = max(1, room // (states.shape[1] * len(backbone.word_embeddings)))
    largest = torch.cat([_largest(backbone.head(part)) for part in torch.split(states, step)])
    return torch.where(inside.any(1, keepdim=True), largest.float(), 0)


def _largest(logits: Tensor) -> Tensor:
    # amax is several times faster on CPU, but its backward pass needs all logits once more.
    return logits.max(1).values if logits.requires_grad else logits.amax(1)
