"""What corruptions share: how many tokens are hidden, a uniform choice of them, and 80/10/10."""

from __future__ import annotations

import math
from typing import Self

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor

from isthmus.config import Settings
from isthmus.pretraining.labels import Vocabulary
from isthmus.training.task import Batch

_TOKEN_BITS = 39


class MaskingSettings(Settings):
    """How much is hidden, and what replaces it."""

    rate: float = Field(0.30, ge=0, lt=1, description="share of non-special tokens chosen; 0: none")
    mask_share: float = Field(0.8, ge=0, le=1, description="of the chosen, replaced by the mask")
    random_share: float = Field(0.1, ge=0, le=1, description="of the chosen, by a random token")

    @model_validator(mode="after")
    def _shares_fit(self) -> Self:
        if self.mask_share + self.random_share > 1:
            raise ValueError("mask_share and random_share together exceed 1")
        return self


def budget(maskable: Tensor, rate: float) -> Tensor:
    """round(rate · n) of each row's n maskable tokens, at least 1 unless the rate is 0, as float64.

    In float32 it would be another number: 0.3 · 95 is 28.5 and rounds to 28, but there it is a
    little more, hence 29.
    """
    available = maskable.sum(1, dtype=torch.float64)
    return torch.minimum((available * rate).round_().clamp_(min=least(rate)), available)


def least(rate: float) -> int:
    """How many tokens are hidden at least: one, unless the rate is 0."""
    return 1 if rate else 0


def choose_uniformly(maskable: Tensor, drawn: Tensor, amount: Tensor) -> Tensor:
    """True at `amount` of each row's maskable positions, every set equally likely."""
    order = torch.where(maskable, drawn, torch.iinfo(torch.int64).max)
    return choose_smallest(order, amount)


def choose_smallest(values: Tensor, amount: Tensor) -> Tensor:
    """True at the `amount` smallest values of each row; equal ones from the left."""
    order = values.argsort(dim=1, stable=True)
    first = torch.arange(values.shape[1], device=values.device) < amount[:, None]
    return torch.empty_like(first).scatter_(1, order, first)


def most_hidden(batch: Batch, rate: float) -> int | None:
    """How many tokens of a batch `budget` hides at most; None without `regular`.

    Of n tokens, round(rate · n) is at most rate · n + ½, and of one token 1 is rate + (1 - rate).
    """
    if "regular" not in batch:
        return None
    if not rate:
        return 0
    texts, tokens = len(batch["input_ids"]), len(batch["regular"])
    # A hair more: a whole number must not fall below itself.
    most = math.floor(rate * tokens + max(0.5, 1 - rate) * texts + 1e-6)
    return min(most, tokens)


def replace(
    ids: Tensor, chosen: Tensor, drawn: Tensor, vocabulary: Vocabulary, settings: MaskingSettings
) -> Tensor:
    """Hides the chosen tokens: mask, random non-special token, or left as they are."""
    # One number answers both questions: its first bits which of the three, the others which token.
    index = (drawn & ((1 << _TOKEN_BITS) - 1)).remainder_(len(vocabulary.regular))
    hidden = vocabulary.regular[index]
    hidden.masked_fill_(drawn <= _last_below(settings.mask_share), vocabulary.mask_id)
    touched = chosen & (drawn <= _last_below(settings.mask_share + settings.random_share))
    return torch.where(touched, hidden, ids)


def _last_below(share: float) -> int:
    """The largest draw whose first 24 bits, as a number in [0, 1), are below the share in float32.

    Integers are compared as they are; making floats of them would take three operations more.
    """
    return (math.ceil(float(np.float32(share)) * 2**24) << _TOKEN_BITS) - 1
