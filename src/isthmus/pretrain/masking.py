"""What all maskings share: the budget, uniform choice, 80/10/10, and where labels are."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from isthmus.config import Settings
from isthmus.nn.prediction import IGNORED as IGNORED
from isthmus.pretrain.randomness import draw
from isthmus.pretrain.vocabulary import Vocabulary
from isthmus.training.task import Batch

_ACTION_STREAM = 4
_TOKEN_BITS = 39
# The fields of a step that hold labels, and those that hold their places in the flattened batch.
PLACES = {"labels": "label_places", "decoder_labels": "decoder_label_places"}
# Who knows at once how many labels there are; all others are behind with their work.
_KNOWING = frozenset({"cpu"})


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


def most_hidden(batch: Batch, rate: float) -> int | None:
    """How many tokens of a batch `budget` hides at most; None where `regular` does not tell.

    Of n tokens, round(rate · n) is at most rate · n + ½, and of one token 1 is rate + (1 - rate).
    """
    if "regular" not in batch:
        return None
    texts, tokens = len(batch["input_ids"]), len(batch["regular"])
    # A hair more: a whole number must not fall below itself.
    most = math.floor(rate * tokens + max(0.5, 1 - rate) * texts + 1e-6)
    return min(most, tokens)


def label_places(made: Batch, most: int | None) -> Batch:
    """The places of all labels among the fields that a part made, under the names of PLACES."""
    return {PLACES[name]: places_of(made[name] != IGNORED, most) for name in PLACES if name in made}


def places_of(chosen: Tensor, most: int | None = None) -> Tensor:
    """Where `chosen` is True in the flattened batch, ascending, and -1 behind them up to `most`.

    A GPU that is asked how many those are stands still; with a number that they cannot exceed, it
    is not asked. Without one it is, and a CPU always, so that it computes nothing in vain.
    """
    flat = chosen.flatten()
    if most is None or flat.device.type in _KNOWING:
        places = flat.nonzero()[:, 0]
        assert most is None or len(places) <= most, f"{len(places)} labels, at most {most} allowed"
        return places
    # Labels beyond the number would be lost without a word: the device itself refuses them.
    torch._assert_async(flat.sum() <= most, "more labels than the part that made them allows")
    return flat.nonzero_static(size=most, fill_value=-1)[:, 0]


def at_labels(step: Batch, name: str, *values: Tensor) -> tuple[Tensor, ...]:
    """The labels of a field, and what stands beside them in each [rows, length, ...].

    They are found where the step does not say where they are.
    """
    places = step.get(PLACES[name])
    if places is None:
        places = places_of(step[name] != IGNORED)
    return at_places(places, step[name], *values)


def at_places(places: Tensor, labels: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
    """Labels and values [rows, length, ...] at places of the flattened batch, [places, ...].

    A place of -1 is none: its label is -100, its values are any. On the way back nothing is
    sorted, as it is behind an index of True and False.
    """
    some = places.clamp(min=0)
    found, *others = (value.flatten(0, 1).index_select(0, some) for value in (labels, *values))
    return torch.where(places < 0, IGNORED, found), *others


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
