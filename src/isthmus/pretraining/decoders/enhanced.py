"""Enhanced decoding (RetroMAE, EMNLP 2022): every position is rebuilt from its own sample."""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from isthmus.config import Settings
from isthmus.nn.architectures import LayerShape
from isthmus.nn.backbone import Backbone
from isthmus.nn.layers import Layer
from isthmus.nn.randomness import draw_visibility
from isthmus.pretraining.decoders._shared import layout_of, own_positions, position_rows
from isthmus.pretraining.labels import IGNORED, Vocabulary
from isthmus.pretraining.parts import Decoder
from isthmus.pretraining.registries import decoder
from isthmus.text.tokenizer import Tokenizer
from isthmus.training.task import Batch

VISIBILITY_STREAM = 8


class EnhancedSettings(Settings):
    """How much each row does not see."""

    rate: float = Field(0.50, gt=0, lt=1, description="share of words hidden from each row")


@decoder("enhanced")
class Enhanced(Decoder):
    """Enhanced decoding (RetroMAE, EMNLP 2022): every position is rebuilt from its own sample.

    Queries: bottleneck + position. Keys and values: the unmasked text, row 0 the bottleneck.

    Row i never sees column i, always column 0, and every other column unless its word is in row
    i's own sample. A word is in a sample with probability `rate`, whatever the others do: drawing
    an exact number of words for every row means sorting rows · length² numbers.
    """

    Settings = EnhancedSettings
    settings: EnhancedSettings
    requires = frozenset({"bottleneck", "partner", "input_ids", "attention_mask", "words", "keys"})
    provides = Decoder.provides | {"decoder_labels"}
    uses_head = True

    def build(self, backbone: Backbone, tokenizer: Tokenizer) -> None:
        """The one layer."""
        self.layer = Layer(LayerShape.of(backbone.config))
        self.positions = own_positions(backbone)

    def prepare(self, batch: Batch, vocabulary: Vocabulary) -> Batch:
        """Every token that is not special."""
        special = vocabulary.is_special(batch["input_ids"])
        return {"decoder_labels": torch.where(special, IGNORED, batch["input_ids"])}

    def most_labels(self, batch: Batch) -> int | None:
        """Every token that is not special."""
        return len(batch["regular"]) if "regular" in batch else None

    def hides(self, batch: Batch, vocabulary: Vocabulary) -> Tensor | None:
        """From how many rows each token is hidden."""
        attended = batch["attention_mask"].bool()
        visible = visibility(batch["keys"], batch["words"], attended, self.settings.rate)
        regular = ~vocabulary.is_special(batch["input_ids"])
        return (~visible & regular[:, :, None] & regular[:, None]).sum(1)

    def decode(self, step: Batch, backbone: Backbone, vocabulary: Vocabulary) -> Tensor:
        """The decoder's states."""
        vectors, ids = step["bottleneck"][step["partner"]], step["input_ids"]
        layout = layout_of(step, backbone, "packed")
        content = layout.embed(ids, vectors, self.positions)
        queries = vectors[:, None] + position_rows(ids, backbone, self.positions)
        visible = visibility(
            step["keys"], step["words"], step["attention_mask"].bool(), self.settings.rate
        )
        return layout.seeing(self.layer, queries, visible, content)


def visibility(keys: Tensor, words: Tensor, attended: Tensor, rate: float) -> Tensor:
    """True at [text, row, column] where the row sees the column, drawn from the texts' keys."""
    hidden = min(round(rate * 2**16), 2**16 - 1)
    return draw_visibility(keys, words, attended, VISIBILITY_STREAM, hidden)
