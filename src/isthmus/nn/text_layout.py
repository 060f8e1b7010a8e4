"""The texts of a batch as layers read them: padded, or packed where that is quicker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from isthmus.nn.backbone import Backbone
from isthmus.nn.kernels.available import has_kernels
from isthmus.nn.numerics import rounded
from isthmus.nn.packing import Asking, Full, Masked, Packing, Visible, visible_within

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
