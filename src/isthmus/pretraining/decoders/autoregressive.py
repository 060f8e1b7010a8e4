"""One causal layer that tells the text token by token from the bottleneck."""

from __future__ import annotations

from functools import partial

import torch
from pydantic import Field
from torch import Tensor, nn

from isthmus.config import Settings
from isthmus.nn.architectures import LayerShape
from isthmus.nn.backbone import Backbone
from isthmus.nn.layers import Layer
from isthmus.pretraining.decoders._shared import layout_of, own_positions
from isthmus.pretraining.labels import IGNORED, Vocabulary
from isthmus.pretraining.parts import Decoder
from isthmus.pretraining.registries import decoder
from isthmus.text.tokenizer import Tokenizer
from isthmus.training.task import Batch


class AutoregressiveSettings(Settings):
    """How far back it sees."""

    window: int | None = Field(
        None, ge=1, description="tokens that a row sees beside the bottleneck, its own included"
    )


@decoder("autoregressive")
class Autoregressive(Decoder):
    """One causal layer that tells the text token by token from the bottleneck.

    Unmasked embeddings, row 0 the bottleneck; a pre-norm causal layer, a final LayerNorm.

    Row i predicts token i + 1: row 0 the first token, the last token's row the closing [SEP].
    """

    Settings = AutoregressiveSettings
    settings: AutoregressiveSettings
    requires = frozenset({"bottleneck", "partner", "input_ids", "attention_mask"})
    provides = Decoder.provides | {"decoder_labels"}
    uses_head = True

    def build(self, backbone: Backbone, tokenizer: Tokenizer) -> None:
        """The layer and its norm."""
        shape = LayerShape.of(backbone.config)
        self.layer = Layer(shape, norm="pre")
        self.norm = nn.LayerNorm(shape.width, eps=shape.norm_epsilon)
        self.positions = own_positions(backbone)

    def prepare(self, batch: Batch, vocabulary: Vocabulary) -> Batch:
        """The next token, where it is a token of the text or closes it."""
        following = batch["input_ids"][:, 1:]
        last = batch["attention_mask"].sum(1) - 1
        closing = torch.arange(1, batch["input_ids"].shape[1], device=last.device) == last[:, None]
        wanted = ~vocabulary.is_special(following) | closing
        labels = torch.full_like(batch["input_ids"], IGNORED)
        labels[:, :-1] = torch.where(wanted, following, IGNORED)
        return {"decoder_labels": labels}

    def most_labels(self, batch: Batch) -> int | None:
        """Every token that is not special, and the end of each text."""
        if "regular" not in batch:
            return None
        return len(batch["regular"]) + len(batch["input_ids"])

    def decode(self, step: Batch, backbone: Backbone, vocabulary: Vocabulary) -> Tensor:
        """The decoder's states."""
        vectors, ids = step["bottleneck"][step["partner"]], step["input_ids"]
        layout = layout_of(step, backbone, "quickest" if self.settings.window is None else "padded")
        states = layout.embed(ids, vectors, self.positions)
        layer = partial(self.layer.normed, norm=self.norm)
        if self.settings.window is None:
            return layout.within(layer, states, causal=True)
        visible = window(ids.shape[1], self.settings.window, ids.device)
        return layer(states, visible & step["attention_mask"].bool()[:, None, None, :])


def window(length: int, size: int, device: torch.device) -> Tensor:
    """True at [row, column] where the row sees the column: slot 0, and the latest tokens."""
    place = torch.arange(length, device=device)
    distance = place[:, None] - place
    return (distance >= 0) & ((distance < size) | (place == 0))
