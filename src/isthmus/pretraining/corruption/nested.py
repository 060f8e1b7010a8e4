"""Masks what the encoder's side masked and more: the decoder never sees what the encoder could not.

LexMAE (ICLR 2023), section 3.3: the decoder's mask is the encoder's with an extra one on top.
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from isthmus.errors import SettingsError
from isthmus.pretraining.corruption._budget import MaskingSettings, choose_uniformly, most_hidden
from isthmus.pretraining.corruption.uniform import CHOICE_STREAM
from isthmus.pretraining.labels import IGNORED, Vocabulary
from isthmus.pretraining.parts import Corruption
from isthmus.pretraining.registries import corruption
from isthmus.training.task import Batch


class NestedSettings(MaskingSettings):
    """The decoder's rate in all, what it takes over from the encoder included."""

    rate: float = Field(0.50, ge=0, lt=1, description="share of non-special tokens hidden in all")


@corruption("nested")
class Nested(Corruption):
    """Masks what the encoder's side masked and more: the decoder sees nothing that it could not.

    LexMAE (ICLR 2023), section 3.3: the decoder's mask is the encoder's with an extra one on top.

    The encoder's k positions, and others until round(rate · n) of the n tokens are hidden.

    Of the n - k others that is a share of (rate - encoder's rate) / (1 - encoder's rate).
    """

    Settings = NestedSettings
    requires = Corruption.requires | {"encoder_ids", "labels"}
    sides = ("decoder",)
    streams = (CHOICE_STREAM,)
    _encoder: Corruption | None = None

    def beside(self, encoder: Corruption | None) -> None:
        """Refuses an encoder's side that it cannot hold: a higher rate, or labels everywhere."""
        self._encoder = encoder
        if getattr(getattr(encoder, "settings", None), "labels", "chosen") == "all":
            raise SettingsError(
                "decoder_corruption: the encoder's side labels every token, so which of them it "
                "masks is unknown",
                "--set corruption.labels=chosen, or choose another decoder_corruption",
            )
        if encoder is not None and self.settings.rate < encoder.settings.rate:
            raise SettingsError(
                f"decoder_corruption.rate = {self.settings.rate} is below the encoder's "
                f"{encoder.settings.rate}, in which the mask is nested",
                f"--set decoder_corruption.rate={min(encoder.settings.rate + 0.2, 0.9)}",
            )

    def choose(self, batch: Batch, vocabulary: Vocabulary) -> Tensor:
        """True at the encoder's positions and the additional ones."""
        maskable = ~vocabulary.is_special(batch["input_ids"])
        hidden = (batch["labels"] != IGNORED) & maskable
        wanted = (maskable.sum(1, dtype=torch.float64) * self.settings.rate).round_()
        # Never more than there are others; below 0, none.
        amount = wanted - hidden.sum(1)
        drawn = self.draw(batch, CHOICE_STREAM)
        return hidden | choose_uniformly(maskable ^ hidden, drawn, amount)

    def most_labels(self, batch: Batch) -> int | None:
        """The budget of the batch, if the encoder's side, of a lower rate, keeps to its own."""
        if self._encoder is None or self._encoder.most_labels(batch) is None:
            return None
        return most_hidden(batch, self.settings.rate)

    def hide(self, batch: Batch, chosen: Tensor, vocabulary: Vocabulary) -> Tensor:
        """The encoder's ids, and the additional tokens hidden in them."""
        more = chosen & (batch["labels"] == IGNORED)
        return torch.where(more, super().hide(batch, more, vocabulary), batch["encoder_ids"])
