"""What a text says about the vocabulary: for every term, the largest logit of its positions."""

from __future__ import annotations

import torch
import torch.nn.functional as functional
from torch import Tensor

from isthmus.nn.backbone import Backbone
from isthmus.nn.prediction import aligned, rows_at_once


def largest_logits(backbone: Backbone, states: Tensor, inside: Tensor) -> Tensor:
    """max_i head(H_i) over the positions inside, [rows, vocabulary] in float32; 0 where none is.

    Some rows at a time, and of these only the place of each maximum is kept for the backward pass:
    training holds no more logits than encoding.
    """
    # Positions outside repeat one inside, which changes no maximum: masking width numbers is
    # cheaper than masking as many logits as there are terms.
    first = states[torch.arange(len(states), device=states.device), inside.int().argmax(1)]
    states = torch.where(inside[:, :, None], states, first[:, None])
    features, matrix, bias = backbone.predict(states)
    wide, offsets = aligned(matrix, bias)
    step = rows_at_once(states.shape[1] * len(wide), states.device)
    # One row is never cut: a trace of the model (encoders/int8.py) would keep the size of a piece.
    parts = torch.split(features, step) if len(features) > 1 else (features,)
    largest = [_largest(functional.linear(part, wide, offsets)) for part in parts]
    found = torch.cat(largest)[:, : len(matrix)].float()
    return torch.where(inside.any(1, keepdim=True), found, 0)


def _largest(logits: Tensor) -> Tensor:
    # amax is several times faster on CPU, but its backward pass needs all logits once more.
    return logits.max(1).values if logits.requires_grad else logits.amax(1)
