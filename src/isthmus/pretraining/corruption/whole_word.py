"""Masks whole words, found with the tokenizer's word_ids, within the same budget."""

from __future__ import annotations

from math import isqrt

import torch
from torch import Tensor

from isthmus.pretraining.corruption._budget import budget, most_hidden
from isthmus.pretraining.labels import Vocabulary, is_synchronous
from isthmus.pretraining.parts import Corruption
from isthmus.pretraining.registries import corruption
from isthmus.training.task import Batch

_WORD_STREAM = 3


@corruption("whole_word")
class WholeWord(Corruption):
    """Masks whole words, found with the tokenizer's word_ids, within the same budget.

    Words in random order, skipping any that would exceed round(rate · n) tokens.

    All pieces of a word are chosen or none. Where every word is longer than the budget, nothing
    is masked and the text has no label.
    """

    streams = (_WORD_STREAM,)

    def choose(self, batch: Batch, vocabulary: Vocabulary) -> Tensor:
        """True at every token of the words to hide."""
        special = vocabulary.is_special(batch["input_ids"])
        maskable = ~special
        # Column 0 collects what belongs to no word.
        columns = (batch["words"] + 1).masked_fill_(special, 0)
        rows, length = columns.shape
        sizes = torch.zeros(rows, length + 1, dtype=torch.int64, device=columns.device)
        sizes.scatter_add_(1, columns, columns.sign())
        order = self.draw(batch, _WORD_STREAM, more=1).argsort(dim=1)
        if (known := batch.get("word_sizes")) is not None:
            different = len(known)
        else:  # m different sizes need m (m + 1) / 2 tokens
            different = (isqrt(8 * length + 1) - 1) // 2
        left = budget(maskable, self.settings.rate).long()
        taken = _fill(sizes.gather(1, order), left, different)
        taken = torch.empty_like(taken).scatter_(1, order, taken)
        taken[:, 0].zero_()
        return taken.gather(1, columns)

    def most_labels(self, batch: Batch) -> int | None:
        """The budget of the batch: fewer where no word fits."""
        return most_hidden(batch, self.settings.rate)


def _fill(sizes: Tensor, left: Tensor, different: int) -> Tensor:
    """True at the items that go into a bag of `left` when taken in order, skipping what is too big.

    A round adds up all items that may still be in. Where the sum first exceeds the bag, everything
    before is in for good, and of the rest all that is bigger than what is left is out for good:
    that item, and with it its size. So there are at most as many rounds as different sizes. An item
    of no size is in.
    """
    # The sum begins so high that beyond the bag it is beyond the largest integer, hence negative:
    # the largest until then is that of what is in. Few operations are few launches on a GPU.
    largest = torch.iinfo(torch.int64).max
    summed = torch.cat(((largest - left)[:, None], sizes), 1)
    items, fitting = summed[:, 1:], largest - sizes
    sums = summed.cumsum(1)
    for _ in range(different - 1):
        # Asking a GPU would mean waiting for it; rounds that change nothing cost less.
        if is_synchronous(sums) and (sums[:, -1] >= 0).all():
            break
        items *= sums.cummax(1).values[:, :-1] <= fitting
        sums = summed.cumsum(1)
    return sums.cummax(1).values[:, :-1] <= fitting
