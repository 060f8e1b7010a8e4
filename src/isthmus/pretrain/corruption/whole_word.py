"""Masks whole words, found with the tokenizer's word_ids, within the same budget."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from isthmus.pretrain.masking import budget, most_hidden
from isthmus.pretrain.parts import Corruption
from isthmus.pretrain.randomness import draw
from isthmus.pretrain.vocabulary import Vocabulary
from isthmus.training.task import Batch

_WORD_STREAM = 3


class WholeWord(Corruption):
    """Words in random order, skipping any that would exceed round(rate · n) tokens.

    All pieces of a word are chosen or none. Where every word is longer than the budget, nothing
    is masked and the text has no label.
    """

    def choose(self, batch: Batch, vocabulary: Vocabulary) -> Tensor:
        """True at every token of the words to hide."""
        maskable = ~vocabulary.is_special(batch["input_ids"])
        # Column 0 collects what belongs to no word.
        columns = torch.where(maskable, batch["words"], -1) + 1
        width = batch["input_ids"].shape[1] + 1
        sizes = torch.zeros(len(columns), width, dtype=torch.int64, device=columns.device)
        sizes.scatter_add_(1, columns, maskable.long())
        sizes[:, 0] = 0
        order = draw(batch["keys"], self.stream(_WORD_STREAM), width).argsort(dim=1)
        taken = _fill(sizes.gather(1, order), budget(maskable, self.settings.rate))
        taken = torch.zeros_like(taken).scatter_(1, order, taken)
        return taken.gather(1, columns)

    def most_labels(self, batch: Batch) -> int | None:
        """No more than the budget's."""
        return most_hidden(batch, self.settings.rate)


def _fill(sizes: Tensor, left: Tensor) -> Tensor:
    """True at the items that go into a bag of `left` when taken in order, skipping what is too big.

    A round takes the longest prefix that fits of all items that still could. What stops it is too
    big from then on, so the biggest item that still could is smaller in every round: there are at
    most as many rounds as different sizes, and m different sizes need m (m + 1) / 2 tokens.
    """
    open_ = sizes.clone()
    left = left[:, None].clone()
    for _ in range((math.isqrt(8 * sizes.shape[1] + 1) - 1) // 2):
        candidates = open_ * (open_ <= left)
        picked = candidates * (candidates.cumsum(1) <= left)
        amount = picked.sum(1, keepdim=True)
        # Asking a GPU would mean waiting for it; rounds that find nothing cost less.
        if amount.device.type == "cpu" and not amount.any():
            break
        open_ -= picked
        left -= amount
    return open_ < sizes
