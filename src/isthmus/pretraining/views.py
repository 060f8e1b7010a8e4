"""Views: which text of a document the encoder sees."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate
from typing import Annotated, ClassVar, Literal, Self

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field, model_validator

from isthmus.config import Settings
from isthmus.nn.randomness import draw
from isthmus.pretraining.parts import Part
from isthmus.pretraining.registries import view
from isthmus.text.corpus import TokenisedDocument
from isthmus.text.sentences import Span, span_end, spans


@dataclass(frozen=True, slots=True)
class Text:
    """What a view shows of a document: token ids without special ones, and the word of each."""

    tokens: npt.NDArray[np.int32]
    words: npt.NDArray[np.int32]
    start: int = 0  # the place of the first token in the document


class View(Part, ABC):
    """Which text the encoder sees. Runs where data is read, on one document at a time."""

    provides = frozenset(
        {
            "input_ids", "attention_mask", "words", "keys", "partner",
            "tokens", "regular", "word_sizes",
        }
    )  # fmt: skip
    rows: ClassVar[int] = 1  # texts per document; the decoder rebuilds one from the other

    def length(self, lengths: npt.NDArray[np.integer], room: int) -> npt.NDArray[np.integer]:
        """About how long a document's texts will be, to batch similar lengths."""
        shown: npt.NDArray[np.integer] = np.minimum(lengths, room)
        return shown

    @abstractmethod
    def __call__(self, document: TokenisedDocument, room: int, key: int) -> tuple[Text, ...]:
        """The texts, of at most `room` tokens each, that `key` draws from the document."""


CROP_STREAM = 1


class SameSettings(Settings):
    """Where a long text is cut."""

    crop: Literal["head", "random"] = "head"


@view("same")
class Same(View):
    """The text itself, cropped once; encoder and decoder see the same crop.

    The beginning of a text, or a random window of it, drawn afresh every epoch.
    """

    Settings = SameSettings
    settings: SameSettings

    def __call__(self, document: TokenisedDocument, room: int, key: int) -> tuple[Text, ...]:
        """The crop; a text that fits is never cropped."""
        start = 0
        spare = len(document.tokens) - room
        if spare > 0 and self.settings.crop == "random":
            start = int(draw(torch.tensor([key]), CROP_STREAM, 1)) % (spare + 1)
        window = slice(start, start + room)
        return (Text(document.tokens[window], document.words[window], start),)


PAIR_STREAM = 32
Strategy = Literal["near", "overlap", "random"]
_STRATEGIES: tuple[Strategy, ...] = ("near", "overlap", "random")
# Every masked language model frames a text with one special token on each side.
_FRAME = 2


class NeighboursSettings(Settings):
    """How the two spans lie to each other, and how long they may be."""

    strategy: Literal["near", "overlap", "random", "mixture"] = "mixture"
    weights: dict[Strategy, Annotated[float, Field(ge=0)]] | None = Field(
        None,
        description="of the strategies in a mixture, in any units; one that is not named is left "
        "out; null: all three alike",
    )
    span: int = Field(128, gt=_FRAME, description="most tokens of a span, special ones included")

    @model_validator(mode="after")
    def _some_weight(self) -> Self:
        if self.weights is not None and self.strategy != "mixture":
            raise ValueError("weights are of strategy=mixture")
        if self.weights is not None and not 0 < sum(self.weights.values()) < math.inf:
            raise ValueError("at least one of near, overlap and random needs a weight above 0")
        return self


@view("neighbours")
class Neighbours(View):
    """Two neighbouring spans of a document; the decoder rebuilds each from the other's vector.

    CoT-MAE (AAAI 2023), section 3.2, "Sampling Strategies"; the uniform mixture of the three, and
    spans of at most 128 tokens that group whole sentences, are of section 4.1; mixtures of two of
    table 4.

    Two spans of a document, drawn afresh every epoch, in random order.

    near: adjacent spans that share nothing. overlap: the second begins inside the first and ends
    after it. random: any two different spans, which share nothing. mixture: one of the three,
    drawn for each document and epoch, uniformly or by their weights. A document of one span is
    shown twice.
    """

    Settings = NeighboursSettings
    settings: NeighboursSettings
    rows = 2
    provides = View.provides | {"pairs"}

    def length(self, lengths: npt.NDArray[np.integer], room: int) -> npt.NDArray[np.integer]:
        """The document's length, or that of a full span."""
        return super().length(lengths, self._limit(room))

    def __call__(self, document: TokenisedDocument, room: int, key: int) -> tuple[Text, Text]:
        """The pair; the same text twice where there is one span only."""
        limit = self._limit(room)
        if len(document.tokens) <= limit:
            whole = _text(document, (0, len(document.tokens)))
            return whole, whole
        kind, first, second, order = draw(torch.tensor([key]), PAIR_STREAM, 4)[0].tolist()
        strategy: str = self.settings.strategy
        if strategy == "mixture":
            strategy = self._drawn(kind)
        found = spans(len(document.tokens), document.sentences, limit)
        if strategy == "random":
            one = found.pop(first % len(found))
            other = found[second % len(found)]
        else:
            place = first % (len(found) - 1)
            one, other = found[place : place + 2]
            if strategy == "overlap":
                other = _overlapping(one, document, limit, second)
        if order % 2:
            one, other = other, one
        return _text(document, one), _text(document, other)

    def _drawn(self, number: int) -> str:
        """The strategy of a mixture that a 63-bit number draws."""
        weights = self.settings.weights
        if weights is None:
            return _STRATEGIES[number % len(_STRATEGIES)]
        names = [name for name in _STRATEGIES if weights.get(name)]
        sums = list(accumulate(weights[name] for name in names))
        return names[min(bisect_right(sums, number / 2**63 * sums[-1]), len(names) - 1)]

    def _limit(self, room: int) -> int:
        return min(room, self.settings.span - _FRAME)


def _overlapping(span: Span, document: TokenisedDocument, limit: int, drawn: int) -> Span:
    """A span that shares at most half of the given one and goes on after it.

    The shared part is whole sentences where the second half of the span begins one, and among these
    beginnings, one that leaves room for the sentence after the span where there is such a one.
    A span of a single token cannot be shared in part: then the result is the adjacent span.
    """
    start, end = span
    boundaries = [0, *document.sentences.tolist(), len(document.tokens)]
    middle = end - (end - start) // 2
    begins = [place for place in boundaries if middle <= place < end] or [middle]
    begins = [place for place in begins if span_end(boundaries, place, limit) > end] or begins
    begin = begins[drawn % len(begins)]
    reached = span_end(boundaries, begin, limit)
    return begin, reached if reached > end else begin + limit


def _text(document: TokenisedDocument, span: Span) -> Text:
    start, end = span
    return Text(document.tokens[start:end], document.words[start:end], start)
