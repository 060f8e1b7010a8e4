"""What decoders share: a stack of layers, the texts of a step, embeddings of positions."""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from isthmus.config import Settings
from isthmus.errors import SettingsError
from isthmus.nn.architectures import LayerShape
from isthmus.nn.backbone import Backbone
from isthmus.nn.layers import Layer, copy_layer
from isthmus.nn.packing import Asking, Packing, Visible
from isthmus.nn.text_layout import Form, TextLayout
from isthmus.pretraining.labels import asking
from isthmus.training.task import Batch


class StackSettings(Settings):
    """How deep a decoder is and how it starts."""

    layers: int = Field(1, ge=1, description="depth")
    init: Literal["random", "last"] | list[int] = Field(
        "random", description="random, the backbone's last layers, or those of these numbers"
    )


class Stack(nn.Module):
    """Post-norm layers of the backbone's shape, random or copied from its layers."""

    def __init__(self, backbone: Backbone, settings: StackSettings) -> None:
        super().__init__()
        shape = LayerShape.of(backbone.config)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(settings.layers))
        for layer, number in zip(self.layers, _copied(backbone, settings), strict=False):
            assert isinstance(layer, Layer)
            copy_layer(backbone, number, layer)

    def forward(
        self, states: Tensor, visible: Visible, some: tuple[Packing, Asking] | None = None
    ) -> Tensor:
        """The states after the last layer; with `some`, those of some tokens [1, places, width]."""
        *others, last = self.layers
        for layer in others:
            states = layer(states, visible)
        assert isinstance(last, Layer)
        return last(states, visible) if some is None else last.of_some(states, *some)


def layout_of(step: Batch, backbone: Backbone, form: Form = "quickest") -> TextLayout:
    """How the texts of a step lie in memory."""
    return TextLayout(backbone, step["attention_mask"], step.get("tokens"), form)


def labelled(stack: Stack, states: Tensor, layout: TextLayout, step: Batch) -> Tensor:
    """The states [texts, length, width] after the stack, of which only labelled ones are read."""
    if not layout.some:
        return layout.within(stack, states)
    return layout.within_for(stack, states, asking(step, "decoder_labels"))


def _copied(backbone: Backbone, settings: StackSettings) -> list[int]:
    if settings.init == "random":
        return []
    wanted = settings.layers
    if settings.init == "last":
        numbers = list(range(backbone.depth - wanted, backbone.depth))
    else:
        numbers = settings.init
    if len(numbers) != wanted or wanted > backbone.depth:
        source = "the last layers" if settings.init == "last" else f"layers {numbers}"
        raise SettingsError(
            f"decoder.init: a decoder of {wanted} layers cannot be copied from {source} of a "
            f"backbone of {backbone.depth}",
            "--set decoder.init=random or last, lower decoder.layers, or name one layer below "
            f"{backbone.depth} for each of them",
        )
    return numbers


def own_positions(backbone: Backbone) -> nn.Embedding | None:
    """Positions for a decoder whose backbone embeds none (ModernBERT rotates queries and keys)."""
    device = backbone.word_embeddings.device
    none = torch.zeros(1, 1, dtype=torch.int64, device=device)
    if backbone.position_embeddings(none) is not None:
        return None
    positions = nn.Embedding(backbone.positions, backbone.dimension)
    nn.init.normal_(positions.weight, std=0.02)
    return positions


def position_rows(ids: Tensor, backbone: Backbone, own: nn.Embedding | None) -> Tensor:
    """The embedding of every position of a batch, the decoder's own or the backbone's."""
    if own is not None:
        found: Tensor = own(torch.arange(ids.shape[1], device=ids.device))
        return found
    embedded = backbone.position_embeddings(ids)
    assert embedded is not None
    return embedded
