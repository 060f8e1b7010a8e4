"""The Condenser head (EMNLP 2021): late [CLS] beside early states of the other tokens."""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from isthmus.errors import SettingsError
from isthmus.nn.backbone import Backbone
from isthmus.pretraining.decoders._shared import Stack, StackSettings, labelled, layout_of
from isthmus.pretraining.labels import Vocabulary
from isthmus.pretraining.parts import Decoder
from isthmus.pretraining.registries import decoder
from isthmus.text.tokenizer import Tokenizer
from isthmus.training.task import Batch


class CondenserSettings(StackSettings):
    """How deep, and from where the other tokens come."""

    layers: int = Field(2, ge=1, description="depth")
    from_layer: int | None = Field(
        None, ge=1, description="layers that the other tokens went through; null: half of them"
    )


@decoder("condenser")
class Condenser(Decoder):
    """The Condenser head (EMNLP 2021): late [CLS] beside early states of the other tokens.

    Layers over [bottleneck ; layer-k states of the other tokens], the encoder's own labels.

    What the early states lack can only come through the late [CLS]. Both are of the same text,
    also where a view shows two.
    """

    Settings = CondenserSettings
    settings: CondenserSettings
    requires = frozenset({"bottleneck", "middle_states", "labels", "attention_mask"})
    provides = Decoder.provides | {"decoder_labels"}
    uses_head = True

    def build(self, backbone: Backbone, tokenizer: Tokenizer) -> None:
        """The layers."""
        layer = self.middle_layer(backbone.depth)
        if not 1 <= layer < backbone.depth:
            raise SettingsError(
                f"decoder.from_layer: the condenser takes states after layer {layer}, and the "
                f"backbone has {backbone.depth}",
                "choose a layer inside the backbone, or a deeper backbone",
                f"1 to {backbone.depth - 1}, null (half the depth)",
            )
        self.stack = Stack(backbone, self.settings)

    def middle_layer(self, depth: int) -> int:
        """Half the depth unless the settings name a layer."""
        return self.settings.from_layer or depth // 2

    def prepare(self, batch: Batch, vocabulary: Vocabulary) -> Batch:
        """The encoder's labels."""
        return {"decoder_labels": batch["labels"]}

    def most_labels(self, batch: Batch) -> int | None:
        """The number of the encoder's labels."""
        return len(batch["label_places"]) if "label_places" in batch else None

    def decode(self, step: Batch, backbone: Backbone, vocabulary: Vocabulary) -> Tensor:
        """The head's states."""
        states = torch.cat([step["bottleneck"][:, None], step["middle_states"][:, 1:]], 1)
        layout = layout_of(step, backbone)
        return labelled(self.stack, layout.laid_out(states), layout, step)
