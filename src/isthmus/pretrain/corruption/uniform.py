"""Masks single tokens drawn uniformly, then 80/10/10."""

from __future__ import annotations

import torch
from torch import Tensor

from isthmus.pretrain.masking import MaskingSettings, budget, replace
from isthmus.pretrain.parts import Corruption, Vocabulary
from isthmus.pretrain.randomness import draw
from isthmus.training.task import Batch

_CHOICE_STREAM = 2


class Uniform(Corruption):
    """Exactly round(rate · n) of a text's n non-special tokens, each set equally likely."""

    Settings = MaskingSettings
    settings: MaskingSettings

    def __call__(self, batch: Batch, vocabulary: Vocabulary) -> Batch:
        """Encoder ids and labels."""
        maskable = ~vocabulary.is_special(batch["input_ids"])
        chosen = choose(maskable, batch["keys"], budget(maskable, self.settings.rate))
        return replace(batch, chosen, vocabulary, self.settings)


def choose(maskable: Tensor, keys: Tensor, amount: Tensor) -> Tensor:
    """True at `amount` of each row's maskable positions, uniformly."""
    order = draw(keys, _CHOICE_STREAM, maskable.shape[1])
    order = order.masked_fill(~maskable, torch.iinfo(torch.int64).max)
    rank = order.argsort(dim=1).argsort(dim=1)
    return (rank < amount[:, None]) & maskable
