"""Layers that see both ways and fill in what the decoder's corruption hid.

Auto-encoding (SimLM, CoT-MAE, CDMAE and the bag-of-words paper's own baseline) and, with a head of
its own, LexMAE's decoder.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from torch import Tensor, nn

from isthmus.nn.architectures import LayerShape
from isthmus.nn.backbone import Backbone
from isthmus.nn.heads import Prediction, TiedHead
from isthmus.pretraining.decoders._shared import (
    Stack,
    StackSettings,
    labelled,
    layout_of,
    own_positions,
)
from isthmus.pretraining.labels import Vocabulary
from isthmus.pretraining.parts import Decoder
from isthmus.pretraining.registries import decoder
from isthmus.text.tokenizer import Tokenizer
from isthmus.training.task import Batch


class BidirectionalSettings(StackSettings):
    """How deep, how it starts, and what reads its states."""

    head: Literal["shared", "own"] = Field(
        "shared", description="the encoder's masked-LM head, or one of its own on tied embeddings"
    )


@decoder("bidirectional")
class Bidirectional(Decoder):
    """Layers that see both ways and fill in what the decoder's corruption hid.

    Auto-encoding (SimLM, CoT-MAE, CDMAE and the bag-of-words paper's own baseline) and, with a
    head of its own, LexMAE's decoder.

    Embeddings of the corrupted text, row 0 replaced by the bottleneck, and N layers.
    """

    Settings = BidirectionalSettings
    settings: BidirectionalSettings
    requires = frozenset(
        {"bottleneck", "partner", "decoder_ids", "decoder_labels", "attention_mask"}
    )

    def build(self, backbone: Backbone, tokenizer: Tokenizer) -> None:
        """The layers, and the head where it is its own."""
        self.stack = Stack(backbone, self.settings)
        self.positions = own_positions(backbone)
        self.own_head: nn.Module | None = None
        if self.settings.head == "own":
            epsilon = LayerShape.of(backbone.config).norm_epsilon
            self.own_head = TiedHead(backbone.dimension, backbone.word_embeddings, epsilon)
        self.uses_head = self.own_head is None

    def decode(self, step: Batch, backbone: Backbone, vocabulary: Vocabulary) -> Tensor:
        """The decoder's states."""
        vectors = step["bottleneck"][step["partner"]]
        ids = step["decoder_ids"]
        layout = layout_of(step, backbone)
        states = layout.embed(ids, vectors, self.positions)
        return labelled(self.stack, states, layout, step)

    def head(self, states: Tensor, backbone: Backbone) -> Prediction:
        """Through the encoder's head, or its own."""
        if self.own_head is None:
            return backbone.predict(states)
        prediction: Prediction = self.own_head(states, backbone.word_embeddings)
        return prediction
