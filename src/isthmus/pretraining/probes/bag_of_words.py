"""Bag-of-words gap: how far the vector is from naming exactly the tokens of its text."""

from __future__ import annotations

from isthmus.pretraining.objectives import bag_of_words, token_sets
from isthmus.pretraining.probes._base import Probe, vocabulary_logits
from isthmus.pretraining.probes._held_out import HeldOut
from isthmus.pretraining.registries import probe
from isthmus.pretraining.task import PretrainTask


@probe("bag_of_words")
class BagOfWords(Probe):
    """Bag-of-words gap: how far the vector is from naming exactly the tokens of its text.

    Mean of the bag-of-words loss less its lower bound log|T|, from the unmasked text.
    """

    better = "lower"

    def __call__(self, task: PretrainTask, held_out: HeldOut) -> dict[str, float]:
        """The mean over the texts that have a bag."""
        total, count = 0.0, 0
        for batch, logits in vocabulary_logits(task, held_out):
            bags = token_sets(batch["input_ids"], task.vocabulary.special)
            losses = bag_of_words(logits, bags)
            sizes = bags.sum(1)
            total += float((losses - sizes.clamp(min=1).log()).sum())
            count += int((sizes > 0).sum())
        return {"": total / max(count, 1)}
