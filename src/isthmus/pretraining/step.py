"""A step of pre-training: what is known of a batch so far, where its labels are, what it counts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from isthmus.nn.backbone import Backbone
from isthmus.nn.heads import Prediction
from isthmus.nn.losses import IGNORED as IGNORED
from isthmus.nn.packing import Asking, take_rows
from isthmus.text.tokenizer import Tokenizer
from isthmus.training.task import Batch

# The fields of a step that hold labels, and those that hold their places in the flattened batch.
PLACES = {"labels": "label_places", "decoder_labels": "decoder_label_places"}
# Devices that compute synchronously: reading a value does not wait for queued work.
SYNCHRONOUS = frozenset({"cpu"})
# What the mean of a loss is taken over: labels of either side, tokens that are not special, texts
# that have such a token, or all texts.
Items = Literal["labels", "decoder_labels", "tokens", "texts", "rows"]


@dataclass(frozen=True)
class Step:
    """A batch on its way through a recipe, with what parts have made of it so far.

    A batch of N documents has N rows, or 2N where a view shows two texts of each (all first ones,
    then all second ones). Fields, by who makes them:

        view          input_ids, attention_mask, words (-1: special), keys (of random numbers),
                      partner (the row whose vector a decoder rebuilds this row from),
                      tokens, regular (places of what is no padding, and not special either),
                      word_sizes, repeated (two texts that are one), columns such as pmi
        corruption    encoder_ids, labels, label_places; decoder_ids, decoder_labels,
                      decoder_label_places
        backbone      hidden_states, first_states, middle_states
        bottleneck    bottleneck
        decoder       decoder_targets, and `prediction`
    """

    fields: Batch
    vocabulary: Vocabulary
    model: Backbone | None = None  # None: only masks are of interest
    prediction: Prediction | None = None  # the decoder's, at `decoder_targets`

    def __getitem__(self, name: str) -> Tensor:
        return self.fields[name]

    def __contains__(self, name: str) -> bool:
        return name in self.fields

    def __or__(self, made: Mapping[str, Tensor]) -> Step:
        return replace(self, fields={**self.fields, **made})

    def get(self, name: str) -> Tensor | None:
        """A field, or None where nothing has made it."""
        return self.fields.get(name)

    @property
    def backbone(self) -> Backbone:
        """The model that is trained."""
        assert self.model is not None, "no part needs the model before the encoder's pass"
        return self.model

    def special(self) -> Tensor:
        """True at the special tokens of the texts, padding included."""
        return self.vocabulary.is_special(self["input_ids"])

    def drawn(self, stream: int) -> Tensor:
        """What the corruption of this moment drew from a stream for every token, 63 bits each."""
        return self[f"drawn/{stream}"][:, : self["input_ids"].shape[1]]

    def first(self) -> Tensor:
        """H_0, the states of every text's first token, [rows, width]."""
        found = self.get("first_states")
        return self["hidden_states"][:, 0] if found is None else found

    def mean(self) -> Tensor:
        """The mean of the states of every text's tokens, [rows, width]."""
        states = self["hidden_states"]
        weights = self["attention_mask"][:, :, None].to(states.dtype)
        return (states * weights).sum(1) / weights.sum(1)

    def at(self, name: str, *values: Tensor) -> tuple[Tensor, ...]:
        """The labels of a field, and the entries at their places in each [rows, length, ...].

        They are found where the step does not say where they are.
        """
        places = self.get(PLACES[name])
        if places is None:
            places = places_of(self[name] != IGNORED)
        return at_places(places, self[name], *values)

    def at_regular(self, *values: Tensor) -> tuple[Tensor, ...]:
        """The entries of each [rows, length, ...] wherever no token is special.

        The first are labels: IGNORED at places that only fill up.
        """
        places = self.get("regular")
        return at_places(places_of(~self.special()) if places is None else places, *values)

    def asking(self, name: str | None) -> Asking:
        """The tokens with a label in a field, if any is named, and the first of every text."""
        ids = self["input_ids"]
        wanted = torch.zeros_like(ids, dtype=torch.bool) if name is None else self[name] != IGNORED
        wanted[:, 0] = True
        places = None if name is None else self.get(PLACES[name])
        if name is not None and places is None:
            return Asking.of(wanted)
        return Asking.of(wanted, len(ids) + (0 if places is None else len(places)))

    def count(self, items: Items) -> Tensor:
        """How many items there are, before the forward pass: what a loss is the mean over."""
        match items:
            case "labels" | "decoder_labels":
                return (self[items] != IGNORED).sum()
            case "tokens":
                return (~self.special()).sum()
            case "texts":
                return (~self.special()).any(1).sum()
        # Filled in there: a number that is copied makes the host wait.
        return torch.full((), len(self["keys"]), device=self["keys"].device)

    def budget(self, rate: float) -> int | None:
        """How many tokens `corruption.budget` hides at most; None without `regular`.

        Of n tokens, round(rate · n) is at most rate · n + ½; of one token, 1 is rate + (1 - rate).
        """
        if "regular" not in self:
            return None
        texts, tokens = len(self["input_ids"]), len(self["regular"])
        # A hair more: a whole number must not fall below itself.
        most = math.floor(rate * tokens + max(0.5, 1 - rate) * texts + 1e-6)
        return min(most, tokens)


def label_places(made: Batch, most: int | None) -> Batch:
    """The places of all labels among the fields that a part made, under the names of PLACES."""
    return {PLACES[name]: places_of(made[name] != IGNORED, most) for name in PLACES if name in made}


def is_synchronous(values: Tensor) -> bool:
    """Whether reading a value needs no device synchronisation."""
    return values.device.type in SYNCHRONOUS


def places_of(chosen: Tensor, most: int | None = None) -> Tensor:
    """Where `chosen` is True in the flattened batch, ascending, then -1 up to `most`.

    `nonzero()` synchronises with a GPU; the upper bound avoids that. On a CPU the result is not
    padded.
    """
    flat = chosen.flatten()
    if most is None or is_synchronous(flat):
        places = flat.nonzero()[:, 0]
        assert most is None or len(places) <= most, f"{len(places)} labels, at most {most} allowed"
        return places
    # Labels beyond the number would be lost without a word: the device itself refuses them.
    torch._assert_async(flat.sum() <= most, "more labels than the part that made them allows")
    return flat.nonzero_static(size=most, fill_value=-1)[:, 0]


def at_places(places: Tensor, labels: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
    """Labels and values [rows, length, ...] at places of the flattened batch, [places, ...].

    A place of -1 is none: its label is -100, its values are arbitrary. The backward pass sorts
    nothing, unlike that of a boolean index.
    """
    found, *others = (take_rows(value.flatten(0, 1), places) for value in (labels, *values))
    return torch.where(places < 0, IGNORED, found), *others


class Vocabulary(torch.nn.Module):
    """Which ids are special, which are not, and the mask."""

    special: Tensor
    regular: Tensor

    def __init__(self, tokenizer: Tokenizer, size: int) -> None:
        super().__init__()
        special = torch.zeros(size, dtype=torch.bool)
        special[torch.from_numpy(tokenizer.special_ids)] = True
        # Rows that pad the matrix beyond the tokenizer's vocabulary are no tokens either.
        special[len(tokenizer) :] = True
        self.register_buffer("special", special, persistent=False)
        self.register_buffer("regular", torch.from_numpy(tokenizer.regular_ids), persistent=False)
        self.mask_id = tokenizer.mask_id
        self.size = size

    def is_special(self, ids: Tensor) -> Tensor:
        """True where an id is a special token, padding included."""
        return self.special[ids]
