"""Masked-LM loss: how well the encoder knows the language of the corpus."""

from __future__ import annotations

from pydantic import Field

from isthmus.pretraining.corruption import MaskingSettings, Uniform
from isthmus.pretraining.labels import IGNORED
from isthmus.pretraining.probes._base import Probe, on_device
from isthmus.pretraining.probes._held_out import HeldOut
from isthmus.pretraining.registries import probe
from isthmus.pretraining.task import PretrainTask


class ProbeMaskingSettings(MaskingSettings):
    """How much is hidden, and what replaces it."""

    rate: float = Field(0.30, gt=0, lt=1, description="share of non-special tokens chosen")


@probe("masked_lm")
class MaskedLm(Probe):
    """Masked-LM loss: how well the encoder knows the language of the corpus.

    Mean cross-entropy at uniformly masked tokens; always the same ones, for every recipe.
    """

    Settings = ProbeMaskingSettings
    settings: ProbeMaskingSettings
    better = "lower"

    def __call__(self, task: PretrainTask, held_out: HeldOut) -> dict[str, float]:
        """The mean over all masked tokens."""
        corruption = Uniform(self.settings)
        total, count = 0.0, 0
        for batch in on_device(task, held_out.texts):
            hidden = corruption(batch, task.vocabulary)
            states = task.backbone(hidden["encoder_ids"], batch["attention_mask"])
            labelled = hidden["labels"] != IGNORED
            prediction = task.backbone.predict(states[labelled])
            total += float(prediction.cross_entropy(hidden["labels"][labelled]))
            count += int(labelled.sum())
        return {"": total / max(count, 1)}
