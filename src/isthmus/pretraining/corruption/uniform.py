"""Masks single tokens drawn uniformly, then 80/10/10."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from isthmus.pretraining.corruption._budget import budget, choose_uniformly, most_hidden
from isthmus.pretraining.labels import Vocabulary
from isthmus.pretraining.parts import Corruption
from isthmus.pretraining.registries import corruption
from isthmus.training.task import Batch

CHOICE_STREAM = 2


@corruption("uniform")
class Uniform(Corruption):
    """Masks single tokens drawn uniformly, then 80/10/10.

    Exactly round(rate · n) of a text's n non-special tokens, each set equally likely.
    """

    streams: ClassVar[tuple[int, ...]] = (CHOICE_STREAM,)

    def choose(self, batch: Batch, vocabulary: Vocabulary) -> Tensor:
        """True at the tokens to hide."""
        maskable = ~vocabulary.is_special(batch["input_ids"])
        amount = budget(maskable, self.settings.rate)
        return choose_uniformly(maskable, self.draw(batch, CHOICE_STREAM), amount)

    def most_labels(self, batch: Batch) -> int | None:
        """The budget of the batch."""
        return most_hidden(batch, self.settings.rate)
