"""Texts without their padding: the tokens of a batch as one stream, and back."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as functional
from torch import Tensor

# The share of a batch below which packing and unpacking cost a CPU as much as padding does.
# A GPU has a kernel for packed texts, and needs no mask for it.
LEAST_PADDING = {"cpu": 0.1, "cuda": 0.0}
KNOWING = frozenset({"cpu"})  # devices whose values are read without synchronisation


_LONG = 256  # tokens from which kernels for one shape pay on a GPU
GRANULES = 128  # of the places of a batch, for `steady_number`
_WIDTHS = 64  # of which the width of a steady batch is a multiple


def steady_number(tokens: int, places: int) -> int:
    """The number of tokens rounded up, so that batches of as many places have few shapes.

    The surplus is padding that counts as tokens. At least one place of padding stays: a batch
    without any is computed in another way.
    """
    if tokens == places:
        return tokens
    granule = _granule(places)
    return min(-(-tokens // granule) * granule, places - 1)


def steady_width(longest: int, limit: int) -> int:
    """The longest text's length rounded up, at most to `limit`, so that batches have few widths."""
    return max(longest, min(-(-longest // _WIDTHS) * _WIDTHS, limit))


def token_places(mask: Tensor, steady: bool = False) -> Tensor:
    """The places of tokens in a flattened batch, for `Packing.of`.

    Steady: followed by places of padding, up to `steady_number` in all.
    """
    flat = mask.flatten()
    tokens = flat.nonzero()[:, 0]
    if not steady:
        return tokens
    more = steady_number(len(tokens), len(flat)) - len(tokens)
    return torch.cat([tokens, (flat == 0).nonzero()[:more, 0]])


def _granule(places: int) -> int:
    """A power of two, about a hundredth of the tokens."""
    return 1 << max(3, (places // GRANULES).bit_length() - 1)


class Full(NamedTuple):
    """Texts of one length, without padding; causal: a token sees itself and those before it."""

    causal: bool = False


class Packing(NamedTuple):
    """Which places of a padded batch hold tokens, and where in the stream each text begins."""

    tokens: Tensor  # their places in the flattened batch, ascending [tokens]; then those of fillers
    present: Tensor  # True where a token is [texts, 1, 1, length]
    # The place of each text's first token in the stream, then the number of tokens; int32
    # [texts + 1]. Fillers follow all texts as further texts, which are no longer than these.
    offsets: Tensor
    causal: bool = False  # whether a token sees only itself and what lies before it

    @classmethod
    def of(cls, mask: Tensor, tokens: Tensor | None = None) -> Packing:
        """The packing of a mask [texts, length] that is not zero where a token is.

        `tokens`, found where the batch was made, spare a device synchronisation. Places of padding
        may follow them, up to `steady_number` in all.
        """
        filled = tokens is not None
        if tokens is None:
            tokens = token_places(mask)
        present = mask.bool()
        offsets = functional.pad(present.sum(1).cumsum(0), (1, 0))
        places, length = mask.numel(), mask.shape[1]
        fillers = _granule(places) - 1 if filled and len(tokens) < places else 0  # at most
        if mask.device.type in KNOWING:  # elsewhere this would synchronise
            fillers = len(tokens) - int(offsets[-1])
            assert 0 <= fillers < _granule(places), "places of another batch"
        if fillers:
            ends = torch.arange(length, fillers + length, length, device=mask.device)
            offsets = torch.cat([offsets, (offsets[-1:] + ends).clamp(max=len(tokens))])
        return cls(tokens, present[:, None, None, :], offsets.to(torch.int32))

    @property
    def texts(self) -> int:
        """How many there are."""
        return self.present.shape[0]

    @property
    def length(self) -> int:
        """The length of the padded batch, which no text exceeds."""
        return self.present.shape[3]

    @property
    def full(self) -> bool:
        """Whether there is no padding."""
        return len(self.tokens) == self.texts * self.length

    @property
    def whole(self) -> bool:
        """Whether attention takes the batch as it is, without padding.

        torch has the fastest attention of a GPU for that, but plans it for every new shape, in some
        hundredths of a second. Long texts are cut to one length; short ones have many.
        """
        return self.full and (self.tokens.device.type == "cpu" or self.length >= _LONG)

    @property
    def saves(self) -> bool:
        """Whether packed is quicker than padded."""
        places = self.texts * self.length
        least = LEAST_PADDING.get(self.tokens.device.type, 0.0)
        return len(self.tokens) <= (1 - least) * places

    def pack(self, padded: Tensor) -> Tensor:
        """The stream [1, tokens, ...] of a padded batch [texts, length, ...]."""
        if self.full:
            return padded.flatten(0, 1)[None]
        return take_rows(padded.flatten(0, 1), self.tokens)[None]

    def unpack(self, packed: Tensor) -> Tensor:
        """The padded batch [texts, length, ...] of a stream [1, tokens, ...]; 0 in the padding."""
        if self.full:
            return packed.reshape(self.texts, self.length, *packed.shape[2:])
        padded = packed.new_zeros(self.texts * self.length, *packed.shape[2:])
        # In place, and not packed[0], whose gradient would be copied into zeros.
        padded.index_copy_(0, self.tokens, packed.squeeze(0))
        return padded.view(self.texts, self.length, *packed.shape[2:])

    def stream(self, places: Tensor) -> Tensor:
        """Where in the stream the tokens at places of the flattened batch are; -1 stays."""
        if self.full:
            return places
        order = self.present.flatten().cumsum(0) - 1
        return torch.where(places < 0, -1, order.index_select(0, places.clamp(min=0)))

    def visible(self, reach: int | None = None) -> Tensor:
        """What each row of the padded batch sees, as `visible_within` says it."""
        return visible_within(self.present[:, 0, 0], self.causal, reach)


class Masked(NamedTuple):
    """Packed texts whose rows do not see all of their text."""

    packing: Packing  # of texts that begin in the first place of their row
    visible: Tensor  # True at [text, row, column] where the row sees the column


# What a row sees: columns that are True, its packed text, some of it, or its unpadded text.
Visible = Tensor | Packing | Masked | Full


class Asking(NamedTuple):
    """Tokens of a batch whose states are read: the last layer needs no queries of the others."""

    places: Tensor  # in the flattened batch, text by text, followed by some -1
    # The place of each text's first one among them, then their number; int32 [texts + 1]. The -1
    # follow all texts as further texts without tokens, no longer than these.
    offsets: Tensor

    @classmethod
    def of(cls, wanted: Tensor, most: int | None = None) -> Asking:
        """Where `wanted` [texts, length] is True; at most so many, where that is known."""
        flat = wanted.flatten()
        offsets = functional.pad(wanted.sum(1).cumsum(0), (1, 0))
        if most is None or wanted.device.type in KNOWING:
            return cls(flat.nonzero()[:, 0], offsets.to(torch.int32))
        places = flat.nonzero_static(size=most, fill_value=-1)[:, 0]
        # In the last text, they could make it longer than the limit that attention is given.
        length = wanted.shape[1]
        others = torch.arange(length, most + length, length, device=wanted.device)
        offsets = torch.cat([offsets, (offsets[-1:] + others).clamp(max=most)])
        return cls(places, offsets.to(torch.int32))

    @classmethod
    def first(cls, ids: Tensor) -> Asking:
        """The first token of every text [texts, length]."""
        texts, length = ids.shape
        offsets = torch.arange(texts + 1, dtype=torch.int32, device=ids.device)
        return cls(offsets[:-1].long() * length, offsets)

    def texts(self, packing: Packing) -> tuple[Tensor, Tensor]:
        """The offsets of the texts among queries, and among keys and values.

        After the batch's own texts come the -1 of the queries and the fillers of the keys.
        """
        count = max(len(self.offsets), len(packing.offsets))
        ours, theirs = (
            torch.cat([offsets, offsets[-1:].expand(count - len(offsets))])
            for offsets in (self.offsets, packing.offsets)
        )
        return ours, theirs

    def put_back(self, states: Tensor, texts: int, length: int) -> Tensor:
        """[texts, length, width] of states [1, places, width]; 0 at all other places."""
        padded: Tensor = _PutBack.apply(states.squeeze(0), self.places, texts * length)  # type: ignore[no-untyped-call]
        return padded.view(texts, length, -1)


def take_rows(rows: Tensor, places: Tensor) -> Tensor:
    """The rows at distinct places; a place of -1 gets any row.

    The backward pass copies each gradient to its place, where torch's would add them up.
    """
    taken: Tensor = _Take.apply(rows, places)  # type: ignore[no-untyped-call]
    return taken


class _Take(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, rows: Tensor, places: Tensor) -> Tensor:
        context.save_for_backward(places)
        context.count = len(rows)
        return rows.index_select(0, places.clamp(min=0))

    @staticmethod
    def backward(context: Any, *above: Tensor) -> Any:
        (places,) = context.saved_tensors
        return _put(above[0], places, context.count), None


class _PutBack(torch.autograd.Function):
    """Rows at their places among `count`; those at -1 are dropped.

    torch's own indexing would copy everything twice, forward and backward, to drop them.
    """

    @staticmethod
    def forward(context: Any, rows: Tensor, places: Tensor, count: int) -> Tensor:
        context.save_for_backward(places)
        return _put(rows, places, count)

    @staticmethod
    def backward(context: Any, *above: Tensor) -> Any:
        (places,) = context.saved_tensors
        found = above[0].index_select(0, places.clamp(min=0))
        return found.masked_fill_((places < 0)[:, None], 0), None, None


def _put(rows: Tensor, places: Tensor, count: int) -> Tensor:
    """Zeros with rows at their places; rows at -1 go to one more row, which is cut off."""
    padded = rows.new_zeros(count + 1, *rows.shape[1:])
    padded.index_copy_(0, torch.where(places < 0, count, places), rows)
    return padded[:count]


def visible_within(mask: Tensor, causal: bool = False, reach: int | None = None) -> Tensor:
    """True where a row may see a column of its text, [texts, 1, length or 1, length].

    Causal: itself and what lies before it. With a `reach`: so many places to either side.
    """
    visible = mask.bool()[:, None, None, :]
    if causal or reach is not None:
        place = torch.arange(mask.shape[1], device=mask.device)
        distance = place[:, None] - place
        if causal:
            visible = visible & (distance >= 0)
        if reach is not None:
            visible = visible & (distance.abs() <= reach)
    return visible
