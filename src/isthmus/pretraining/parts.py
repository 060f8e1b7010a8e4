"""The parts a pre-training recipe is made of, and what each declares.

    document -> view -> corruption -> backbone -> bottleneck -> decoder -> objectives

A part names the fields of the step that it requires and those it provides. A recipe is checked
when it is assembled, before weights or data are read. `build` then meets the backbone, before the
corpus is read.

A batch of N documents has N rows, or 2N where a view shows two texts of each (all first ones, then
all second ones). Row r of a decoder rebuilds text r from the vector of row `partner[r]`: the same
row, or the other text of the document.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Protocol

import numpy.typing as npt
from torch import Tensor

from isthmus.config import Settings
from isthmus.errors import SettingsError
from isthmus.nn.backbone import Backbone
from isthmus.text.corpus import TokenisedCorpus
from isthmus.text.tokenizer import Tokenizer
from isthmus.training.task import Batch

BACKBONE_PROVIDES = frozenset({"hidden_states", "middle_states"})
Side = Literal["encoder", "decoder"]
# What stands for a text when it is searched: a pooled state, or weights of the vocabulary.
Vector = Literal["cls", "mean", "lexicon"]
# Which tokens: every one, those with a label, the first of each text.
Reads = Literal["all", "labels", "first"]


class Column(Protocol):
    """Something known of every token of a corpus: `column[row]` has one entry per token."""

    def __getitem__(self, row: int, /) -> npt.NDArray[Any]: ...


class Part:
    """A named choice with settings of its own."""

    Settings: ClassVar[type[Settings]] = Settings
    requires: frozenset[str] = frozenset()
    provides: frozenset[str] = frozenset()
    makes: frozenset[str] = frozenset()  # required fields that the part itself sees to
    reads: Reads = "all"  # of the hidden states, where it requires them
    uses_head = False
    trains: Vector | None = None  # what it makes stand for a text; None: it leaves that to others
    finetune_with: ClassVar[str | None] = None  # the recipe to go on with, beside the default one
    # Whether a CUDA graph may replay it: it computes with tensors of the device alone, keeps no
    # counter, reads no value back, and draws no number on the host.
    capturable = True

    def __init__(self, settings: Any) -> None:
        super().__init__()
        self.settings = settings

    def build(self, backbone: Backbone, tokenizer: Tokenizer) -> None:
        """Makes what depends on the backbone, and refuses one that it cannot work with."""

    def columns(self, corpus: TokenisedCorpus, tokenizer: Tokenizer) -> Mapping[str, Column]:
        """What the part must know of every token, made once and kept beside the corpus."""
        return {}

    def data(self) -> Mapping[str, str]:
        """Fingerprints of what the part reads beside corpus and model."""
        return {}

    def lack(self) -> SettingsError | None:
        """The refusal of settings without which it cannot train; inspection does without them."""
        return None

    def most_labels(self, batch: Batch) -> int | None:
        """An upper bound of the labels that the part adds to a batch, without synchronisation.

        `regular`, the places of all tokens that are not special, has a known length. None: there is
        no bound, and finding the labels synchronises with the device.
        """
        return None


def first_states(step: Batch) -> Tensor:
    """H_0, the states of every text's first token, [rows, width]."""
    found = step.get("first_states")  # a step may begin with states of another's making
    return step["hidden_states"][:, 0] if found is None else found


def mean_states(step: Batch) -> Tensor:
    """The mean of the states of every text's tokens, [rows, width]."""
    states = step["hidden_states"]
    weights = step["attention_mask"][:, :, None].to(states.dtype)
    return (states * weights).sum(1) / weights.sum(1)
