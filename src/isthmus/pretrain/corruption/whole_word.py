"""Masks whole words, found with the tokenizer's word_ids, within the same budget."""

from __future__ import annotations

import torch
from torch import Tensor

from isthmus.pretrain.masking import budget
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


def _fill(sizes: Tensor, left: Tensor) -> Tensor:
    """True at the items that go into a bag of `left` when taken in order, skipping what is too big.

    A round takes the longest prefix that fits of all items that still could: what is left only
    shrinks, so an item too big now is too big forever. Two or three rounds do instead of one step
    for every item.
    """
    taken = torch.zeros_like(sizes, dtype=torch.bool)
    while True:
        open_ = ~taken & (sizes > 0) & (sizes <= left[:, None])
        candidates = torch.where(open_, sizes, 0)
        fits = open_ & (candidates.cumsum(1) <= left[:, None])
        if not fits.any():
            return taken
        taken |= fits
        left = left - torch.where(fits, sizes, 0).sum(1)
