"""What all maskings share: the budget, uniform choice, and 80/10/10."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from isthmus.config import Settings
from isthmus.pretrain.randomness import draw
from isthmus.pretrain.vocabulary import Vocabulary
from isthmus.training.task import Batch

_ACTION_STREAM = 4
_TOKEN_BITS = 39
IGNORED = -100


class MaskingSettings(Settings):
    """How much is hidden, and behind what."""

    rate: float = Field(0.30, gt=0, lt=1, description="share of non-special tokens chosen")
    mask_share: float = Field(0.8, ge=0, le=1, description="of the chosen, replaced by the mask")
    random_share: float = Field(0.1, ge=0, le=1, description="of the chosen, by a random token")

    @model_validator(mode="after")
    def _shares_fit(self) -> Self:
        if self.mask_share + self.random_share > 1:
            raise ValueError("mask_share and random_share together exceed 1")
        return self


def budget(maskable: Tensor, rate: float) -> Tensor:
    """round(rate · n) of each row's n maskable tokens, at least 1 where there is one."""
    available = maskable.sum(1)
    # In float64: 0.3 · 95 is 28.5 and rounds to 28; the float32 product is above it, hence 29.
    wanted = torch.round(available.double() * rate).long().clamp(min=1)
    return torch.minimum(wanted, available)


def choose_uniformly(maskable: Tensor, keys: Tensor, stream: int, amount: Tensor) -> Tensor:
    """True at `amount` of each row's maskable positions, every set equally likely."""
    order = draw(keys, stream, maskable.shape[1])
    return choose_smallest(order.masked_fill(~maskable, torch.iinfo(torch.int64).max), amount)


def choose_smallest(values: Tensor, amount: Tensor) -> Tensor:
    """True at the `amount` smallest values of each row; equal ones from the left."""
    order = values.argsort(dim=1, stable=True)
    first = torch.arange(values.shape[1], device=values.device) < amount[:, None]
    return torch.zeros_like(first).scatter_(1, order, first)


def at_chosen(chosen: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
    """Of each [rows, length, ...], what stands where `chosen` is True, [chosen, ...].

    A GPU that is asked how many those are stands still: once here, and not once for each. Nor are
    places sorted on the way back, as they are behind an index of True and False.
    """
    places = chosen.flatten().nonzero()[:, 0]
    return tuple(value.flatten(0, 1).index_select(0, places) for value in values)


def replace(
    batch: Batch,
    chosen: Tensor,
    vocabulary: Vocabulary,
    settings: MaskingSettings,
    stream: Callable[[int], int],
) -> Tensor:
    """Hides the chosen tokens: mask, random non-special token, or left as they are."""
    ids, keys = batch["input_ids"], batch["keys"]
    # One draw for both questions: on a GPU the launches cost more than the numbers.
    drawn = draw(keys, stream(_ACTION_STREAM), ids.shape[1])
    action = (drawn >> _TOKEN_BITS).to(torch.float32) * 2.0 ** (_TOKEN_BITS - 63)
    index = (drawn & ((1 << _TOKEN_BITS) - 1)) % len(vocabulary.regular)
    masked = chosen & (action < settings.mask_share)
    randomised = chosen & ~masked & (action < settings.mask_share + settings.random_share)
    hidden = torch.where(masked, vocabulary.mask_id, ids)
    return torch.where(randomised, vocabulary.regular[index], hidden)
