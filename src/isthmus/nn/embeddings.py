"""Embeddings of positions and of token types."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def position_numbers(input_ids: Tensor, padding_id: int | None) -> Tensor:
    """The number of every position, [length] or [batch, length].

    RoBERTa and its kin, which have a `padding_id`, count from the number after it and skip padding.
    """
    if padding_id is None:
        return torch.arange(input_ids.shape[1], device=input_ids.device)
    present = (input_ids != padding_id).long()
    return present.cumsum(1) * present + padding_id


def use_first_type(model: Any) -> None:
    """Lets a model, if it has token types, take the first one for every token."""
    embeddings = getattr(model.base_model, "embeddings", None)
    types = getattr(embeddings, "token_type_embeddings", None)
    if types is not None:
        types.__class__ = _FirstType


class _FirstType(nn.Embedding):
    """The embedding of the first type for every token: one row, whose gradient is a sum.

    A lookup would add the gradients of all tokens to that row one after the other.
    """

    def forward(self, types: Tensor) -> Tensor:
        return self.weight[0].expand(*types.shape, -1)
