"""What decoders share: a stack of layers, embeddings behind a bottleneck, a head of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as functional
from pydantic import Field
from torch import Tensor, nn

from isthmus.config import Settings
from isthmus.errors import SettingsError
from isthmus.nn.backbone import Backbone
from isthmus.nn.fused import drop_add_norm, has_kernels
from isthmus.nn.layer_shape import LayerShape
from isthmus.nn.layers import Layer, copy_layer
from isthmus.nn.packing import Asking, Full, Packing, visible_within
from isthmus.nn.post_norm import Visible
from isthmus.nn.prediction import Prediction
from isthmus.nn.projection import rounded
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
        """The states after the last layer; where some are read, theirs alone [1, places, width]."""
        *others, last = self.layers
        for layer in others:
            states = layer(states, visible)
        assert isinstance(last, Layer)
        return last(states, visible) if some is None else last.of_some(states, *some)


def packed_for(step: Batch, backbone: Backbone, always: bool = False) -> Packing | None:
    """How a decoder's texts become a stream, where its layers run on our kernels.

    None where the batch stays as it is: for attention that takes it whole; unless `always`.
    """
    if not backbone.asks_for_some:
        return None
    packing = backbone.packing(step["attention_mask"], step.get("tokens"))
    return None if packing is not None and packing.whole and not always else packing


def labelled_within_texts(
    stack: Stack, states: Tensor, step: Batch, backbone: Backbone, stream: Packing | None = None
) -> Tensor:
    """The same of a stack, where only the states of the decoder's labels have a meaning.

    The states may be a `stream` already.
    """
    packing = stream or backbone.packing(step["attention_mask"], step.get("tokens"))
    if packing is None or not backbone.asks_for_some:
        return within_texts(stack, states, step, backbone)
    asked = asking(step, "decoder_labels")
    visible: Visible = Full() if packing.whole else packing
    if stream is None and not packing.whole:
        states = packing.pack(states)
    return asked.put_back(stack(states, visible, (packing, asked)), packing.texts, packing.length)


def within_texts(
    layers: Callable[[Tensor, Visible], Tensor],
    states: Tensor,
    step: Batch,
    backbone: Backbone,
    causal: bool = False,
) -> Tensor:
    """The states [rows, length, width] after layers in which each text sees itself.

    Where there is enough padding, the layers never meet it. Causal: each token sees itself and
    what lies before it.
    """
    packing = backbone.packing(step["attention_mask"], step.get("tokens"))
    if packing is not None and packing.whole:
        return layers(states, Full(causal))  # torch chooses among its kernels
    if packing is not None:
        packed = layers(packing.pack(states), packing._replace(causal=causal))
        return packing.unpack(packed)
    return layers(states, visible_within(step["attention_mask"], causal))


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
            f"a decoder of {wanted} layers cannot be copied from {source} of a backbone of "
            f"{backbone.depth}",
            where="decoder.init",
            allowed=f"one number below {backbone.depth} for each of decoder.layers, last, random",
            remedy="--set decoder.init=random, or fewer decoder.layers",
        )
    return numbers


class Head(nn.Module):
    """Dense, LayerNorm, times the backbone's word embeddings (tied), plus a bias."""

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        shape = LayerShape.of(backbone.config)
        self.dense = nn.Linear(shape.width, backbone.embedding_width)
        self.norm = nn.LayerNorm(backbone.embedding_width, eps=shape.norm_epsilon)
        self.bias = nn.Parameter(torch.zeros(len(backbone.word_embeddings)))
        nn.init.normal_(self.dense.weight, std=0.02)
        nn.init.zeros_(self.dense.bias)

    def forward(self, states: Tensor, backbone: Backbone) -> Prediction:
        """What it says of the vocabulary."""
        if backbone.use_kernels and has_kernels(states):
            projected = functional.linear(states, self.dense.weight)
            features, _ = drop_add_norm(projected, self.dense.bias, None, self.norm, 0.0)
        else:
            features = self.norm(self.dense(states))
        return Prediction(features, backbone.word_embeddings, self.bias)


def own_positions(backbone: Backbone) -> nn.Embedding | None:
    """Positions for a decoder whose backbone embeds none (ModernBERT turns its keys instead)."""
    device = backbone.word_embeddings.device
    if (
        backbone.position_embeddings(torch.zeros(1, 1, dtype=torch.int64, device=device))
        is not None
    ):
        return None
    positions = nn.Embedding(backbone.positions, backbone.dimension)
    nn.init.normal_(positions.weight, std=0.02)
    return positions


def position_rows(ids: Tensor, backbone: Backbone, own: nn.Embedding | None) -> Tensor:
    """The embedding of every position of a batch."""
    if own is not None:
        rows: Tensor = own(torch.arange(ids.shape[1], device=ids.device))
        return rows
    embedded = backbone.position_embeddings(ids)
    assert embedded is not None
    return embedded


def embed_behind(
    vectors: Tensor,
    ids: Tensor,
    backbone: Backbone,
    own: nn.Embedding | None,
    stream: Packing | None = None,
) -> Tensor:
    """The embedded text with the bottleneck in row 0, nothing added to it; perhaps as a stream."""
    embedded = backbone.embed(ids, stream)
    if own is not None:
        assert stream is None, "a backbone without positions has layers of its own"
        embedded = embedded + position_rows(ids, backbone, own)
    if stream is not None:
        places = stream.offsets[: stream.texts].long()
        embedded = rounded(embedded)
        return embedded.index_copy(1, places, vectors[None].to(embedded.dtype))
    if backbone.use_kernels and has_kernels(embedded):
        own_copy = rounded(embedded)  # as our layers would
        if own_copy is not embedded:
            own_copy[:, 0] = vectors  # the others stay where they are
            return own_copy
    return torch.cat([vectors[:, None].to(embedded.dtype), embedded[:, 1:]], 1)
