"""Masks whole words, found with the tokenizer's word_ids, within the same budget."""

from __future__ import annotations

import torch

from isthmus.pretrain.masking import MaskingSettings, budget, replace
from isthmus.pretrain.parts import Corruption, Vocabulary
from isthmus.pretrain.randomness import draw
from isthmus.training.task import Batch

_WORD_STREAM = 3


class WholeWord(Corruption):
    """Words in random order, skipping any that would exceed round(rate · n) tokens.

    All pieces of a word are chosen or none. Where every word is longer than the budget, nothing
    is masked and the text has no label.
    """

    Settings = MaskingSettings
    settings: MaskingSettings

    def __call__(self, batch: Batch, vocabulary: Vocabulary) -> Batch:
        """Encoder ids and labels."""
        maskable = ~vocabulary.is_special(batch["input_ids"])
        words = torch.where(maskable, batch["words"], -1)
        # Column 0 collects what belongs to no word.
        columns = words + 1
        width = int(columns.max()) + 1
        sizes = torch.zeros(len(words), width, dtype=torch.int64, device=words.device)
        sizes.scatter_add_(1, columns, maskable.long())
        sizes[:, 0] = 0
        order = draw(batch["keys"], _WORD_STREAM, width).argsort(dim=1)
        left = budget(maskable, self.settings.rate)
        taken = torch.zeros_like(sizes, dtype=torch.bool)
        for rank in range(width):
            column = order[:, rank : rank + 1]
            size = sizes.gather(1, column)[:, 0]
            fits = (size > 0) & (size <= left)
            left = left - torch.where(fits, size, 0)
            taken.scatter_(1, column, fits[:, None])
        chosen = taken.gather(1, columns) & maskable
        return replace(batch, chosen, vocabulary, self.settings)
