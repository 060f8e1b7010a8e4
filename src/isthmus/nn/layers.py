"""Layers in plain PyTorch for decoders, and how the texts of a batch lie in memory for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout

from isthmus.errors import SettingsError
from isthmus.nn.architectures import POST_NORM, LayerShape, layers_of
from isthmus.nn.backbone import Backbone
from isthmus.nn.kernels.available import Untouched, has_kernels
from isthmus.nn.kernels.bert_layer import PostNorm, Rates, attend
from isthmus.nn.numerics import rounded
from isthmus.nn.packing import Asking, Full, Masked, Packing, Visible, take_rows, visible_within


class Layer(nn.Module):
    """Multi-head attention and a feed-forward network, each with a residual and a LayerNorm.

    Weights are drawn from torch's global generator: N(0, 0.02), no biases, unit norms.
    """

    def __init__(self, shape: LayerShape, norm: Literal["post", "pre"] = "post") -> None:
        from transformers.activations import ACT2FN

        super().__init__()
        self.shape = shape
        self.norm = norm
        self.query = nn.Linear(shape.width, shape.width)
        self.key = nn.Linear(shape.width, shape.width)
        self.value = nn.Linear(shape.width, shape.width)
        self.output = nn.Linear(shape.width, shape.width)
        self.attention_norm = nn.LayerNorm(shape.width, eps=shape.norm_epsilon)
        self.expand = nn.Linear(shape.width, shape.intermediate)
        self.activation: nn.Module = ACT2FN[shape.activation]
        self.contract = nn.Linear(shape.intermediate, shape.width)
        self.feed_forward_norm = nn.LayerNorm(shape.width, eps=shape.norm_epsilon)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)
        self.untouched = Untouched(self)

    def forward(self, states: Tensor, visible: Visible, content: Tensor | None = None) -> Tensor:
        """The states [batch, queries, width] after they attended to the content they may see.

        Args:
            states: The input of queries and residuals.
            visible: Boolean, broadcastable to [batch, heads, queries, keys]. A row that sees
                nothing gets the output's bias alone. Or the packing of a stream
                [1, tokens, width], or `Full` for texts without padding.
            content: The input of keys and values [batch, keys, width]; by default, the states.

        """
        if self._fuses(states):
            modules, rates = self._weights()
            return modules.run(states, states, visible, self.shape.heads, rates, content)[0]
        return self.plain(states, visible, content)

    def plain(self, states: Tensor, visible: Visible, content: Tensor | None) -> Tensor:
        """`forward` in plain torch."""
        if self.norm == "post":
            attended = self.attention_norm(states + self._attend(states, visible, content))
            normed: Tensor = self.feed_forward_norm(attended + self._feed_forward(attended))
            return normed
        if content is not None:
            content = self.attention_norm(content)
        attended = states + self._attend(self.attention_norm(states), visible, content)
        return attended + self._feed_forward(self.feed_forward_norm(attended))

    def _fuses(self, states: Tensor) -> bool:
        known = self.norm == "post" and self.shape.activation == "gelu"
        return known and has_kernels(states) and bool(self.untouched)

    def of_some(self, states: Tensor, packing: Packing, asking: Asking) -> Tensor:
        """The states of some tokens of a batch, [1, places, width]."""
        if not self._fuses(states):
            every = self(states, Full() if packing.whole else packing).flatten(0, 1)
            return take_rows(every, packing.stream(asking.places))[None]
        modules, rates = self._weights()
        return modules.run_for_some(states, packing, asking, self.shape.heads, rates, None)

    def _weights(self) -> tuple[PostNorm, Rates]:
        shape = self.shape
        rates = Rates(shape.attention_dropout, shape.dropout, shape.dropout)
        modules = PostNorm(*(getattr(self, name) for name in PostNorm._fields))
        return modules, rates if self.training else Rates()

    def _attend(self, states: Tensor, visible: Visible, content: Tensor | None) -> Tensor:
        content = states if content is None else content
        triple = (
            self._heads(self.query(states)),
            self._heads(self.key(content)),
            self._heads(self.value(content)),
        )
        answer = attend(triple, visible, self.shape.attention_dropout if self.training else 0.0)
        return self._dropped(self.output(answer.transpose(1, 2).flatten(2)))

    def _feed_forward(self, states: Tensor) -> Tensor:
        return self._dropped(self.contract(self.activation(self.expand(states))))

    def _heads(self, states: Tensor) -> Tensor:
        return states.view(*states.shape[:2], self.shape.heads, -1).transpose(1, 2)

    def _dropped(self, states: Tensor) -> Tensor:
        return dropout(states, self.shape.dropout, self.training)


def copy_layer(backbone: Backbone, number: int, layer: Layer) -> None:
    """Copies the weights of the backbone's layer `number`, from 0, into a post-norm layer."""
    assert layer.norm == "post", "a pre-norm layer computes something else with the same weights"
    kind = backbone.config.model_type
    if kind not in POST_NORM:
        raise SettingsError(
            f"decoder.init: the layers of a {kind!r} model cannot be copied into a decoder",
            "--set decoder.init=random",
        )
    if not 0 <= number < backbone.depth:
        raise SettingsError(
            f"decoder.init: there is no layer {number} to copy",
            "choose one of these, or --set decoder.init=random",
            f"0 to {backbone.depth - 1}, last, random",
        )
    source = layers_of(backbone.model)[number]
    for name, module in source._asdict().items():
        getattr(layer, name).load_state_dict(module.state_dict())


# Packed: also without any padding; both only where kernels take packed states.
Form = Literal["quickest", "padded", "packed"]


class TextLayout:
    """Which places of a batch hold tokens, and how its states lie in memory.

    `embed` and `laid_out` give states of this layout, which the other methods take; what these
    give back is padded, [texts, length, width].
    """

    def __init__(
        self,
        backbone: Backbone,
        mask: Tensor,
        tokens: Tensor | None = None,
        form: Form = "quickest",
    ) -> None:
        """`tokens` as in `Backbone.forward`."""
        self.backbone = backbone
        self.mask = mask
        asks = backbone.asks_for_some
        used = form == "quickest" or (form == "packed" and asks)
        self.packing = backbone.packing(mask, tokens) if used else None
        # Whether the last of several layers may compute the states of some tokens alone.
        self.some = asks and self.packing is not None
        kept = form == "quickest" and self.packing is not None and self.packing.whole
        self.stream: Packing | None = self.packing if asks and not kept else None

    def laid_out(self, states: Tensor) -> Tensor:
        """Padded states in this layout."""
        return states if self.stream is None else self.stream.pack(states)

    def embed(self, ids: Tensor, first: Tensor, positions: nn.Embedding | None = None) -> Tensor:
        """The embedded texts with the vectors `first` [texts, width] in place of their first token.

        Nothing is added to these vectors. `positions` are added to the embeddings of all others,
        for a backbone that embeds none itself.
        """
        embedded = self.backbone.embed(ids, self.stream)
        if positions is not None:
            assert self.stream is None, "a backbone without positions has layers of its own"
            embedded = embedded + positions(torch.arange(ids.shape[1], device=ids.device))
        if self.stream is not None:
            places = self.stream.offsets[: self.stream.texts].long()
            embedded = rounded(embedded)
            return embedded.index_copy(1, places, first[None].to(embedded.dtype))
        if has_kernels(embedded):
            copy = rounded(embedded)  # the layers would cast them anyway
            if copy is not embedded:
                copy[:, 0] = first
                return copy
        return torch.cat([first[:, None].to(embedded.dtype), embedded[:, 1:]], 1)

    def within(
        self, layers: Callable[[Tensor, Visible], Tensor], states: Tensor, causal: bool = False
    ) -> Tensor:
        """The states after layers in which each text sees itself.

        Causal: each token sees itself and those before it.
        """
        if self.packing is None:
            return layers(states, visible_within(self.mask, causal))
        packed = self.packing._replace(causal=causal)
        if self.stream is not None:
            return packed.unpack(layers(states, packed))
        if self.packing.whole:
            return layers(states, Full(causal))
        return packed.unpack(layers(packed.pack(states), packed))

    def within_for(
        self,
        layers: Callable[[Tensor, Visible, tuple[Packing, Asking]], Tensor],
        states: Tensor,
        asking: Asking,
    ) -> Tensor:
        """The states of some tokens alone, after layers in which each text sees itself."""
        packing = self.packing
        assert packing is not None
        visible: Visible = Full() if packing.whole else packing
        found = layers(states, visible, (packing, asking))
        return asking.put_back(found, packing.texts, packing.length)

    def seeing(
        self,
        layer: Callable[[Tensor, Visible, Tensor], Tensor],
        queries: Tensor,
        visible: Tensor,
        content: Tensor,
    ) -> Tensor:
        """Padded queries after a layer in which each sees some of the content of its text.

        `visible` is True at [text, row, column] where the row sees the column.
        """
        if self.stream is None:
            return layer(queries, visible[:, None], content)
        packed = layer(self.stream.pack(queries), Masked(self.stream, visible), content)
        return self.stream.unpack(packed)
