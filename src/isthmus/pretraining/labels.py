"""Where the labels of a step are, and which tokens may have one."""

from __future__ import annotations

import torch
from torch import Tensor

from isthmus.nn.packing import Asking, take_rows
from isthmus.nn.vocabulary_product import IGNORED as IGNORED
from isthmus.text.tokenizer import Tokenizer
from isthmus.training.task import Batch

# The fields of a step that hold labels, and those that hold their places in the flattened batch.
PLACES = {"labels": "label_places", "decoder_labels": "decoder_label_places"}
# Devices that compute synchronously: reading a value does not wait for queued work.
SYNCHRONOUS = frozenset({"cpu"})


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


def asking(step: Batch, name: str | None) -> Asking:
    """The tokens with a label in a field, if any is named, and the first of every text."""
    ids = step["input_ids"]
    wanted = torch.zeros_like(ids, dtype=torch.bool) if name is None else step[name] != IGNORED
    wanted[:, 0] = True
    places = None if name is None else step.get(PLACES[name])
    if name is not None and places is None:
        return Asking.of(wanted)
    return Asking.of(wanted, len(ids) + (0 if places is None else len(places)))


def at_labels(step: Batch, name: str, *values: Tensor) -> tuple[Tensor, ...]:
    """The labels of a field, and the entries at their places in each [rows, length, ...].

    They are found where the step does not say where they are.
    """
    places = step.get(PLACES[name])
    if places is None:
        places = places_of(step[name] != IGNORED)
    return at_places(places, step[name], *values)


def at_places(places: Tensor, labels: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
    """Labels and values [rows, length, ...] at places of the flattened batch, [places, ...].

    A place of -1 is none: its label is -100, its values are arbitrary. The backward pass sorts
    nothing, unlike that of a boolean index.
    """
    found, *others = (take_rows(value.flatten(0, 1), places) for value in (labels, *values))
    return torch.where(places < 0, IGNORED, found), *others


def at_regular(step: Batch, vocabulary: Vocabulary) -> tuple[Tensor, ...]:
    """Original tokens, the encoder's states and the tokens it read, wherever none is special."""
    places = step.get("regular")
    if places is None:
        places = places_of(~vocabulary.is_special(step["input_ids"]))
    return at_places(places, step["input_ids"], step["hidden_states"], step["encoder_ids"])


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
