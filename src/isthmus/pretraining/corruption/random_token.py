"""Replaces tokens by random ones; nothing marks where, so every token may have to be judged."""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from isthmus.pretraining.corruption._budget import MaskingSettings
from isthmus.pretraining.corruption.uniform import Uniform
from isthmus.pretraining.labels import IGNORED
from isthmus.pretraining.vocabulary import Vocabulary
from isthmus.training.task import Batch


class ReplacementSettings(MaskingSettings):
    """How much is replaced, and which tokens must then be predicted."""

    mask_share: float = Field(0.0, ge=0, le=1, description="of the chosen, replaced by the mask")
    random_share: float = Field(1.0, ge=0, le=1, description="of the chosen, by a random token")
    labels: Literal["all", "chosen"] = Field(
        "all", description="every token that is not special, or only those that were chosen"
    )


class RandomToken(Uniform):
    """Uniformly chosen tokens, each replaced by one drawn from the vocabulary."""

    Settings = ReplacementSettings
    settings: ReplacementSettings

    def labels(self, batch: Batch, chosen: Tensor, vocabulary: Vocabulary) -> Tensor:
        """Every token that is not special, unless the settings say otherwise."""
        if self.settings.labels == "chosen":
            return super().labels(batch, chosen, vocabulary)
        special = vocabulary.is_special(batch["input_ids"])
        return torch.where(special, IGNORED, batch["input_ids"])

    def labels_nothing(self) -> bool:
        """Whether only chosen tokens have a label, and none is chosen."""
        return self.settings.labels == "chosen" and super().labels_nothing()

    def most_labels(self, batch: Batch) -> int | None:
        """The tokens that are not special, or the budget."""
        if self.settings.labels == "chosen":
            return super().most_labels(batch)
        return len(batch["regular"]) if "regular" in batch else None
