"""The base of all parts of a pre-training recipe, and what each declares.

    document -> view -> corruption -> backbone -> bottleneck -> decoder -> objectives

A part names the fields of the step that it requires and those it provides. A recipe is checked
when it is assembled, before weights or data are read. `build` then meets the backbone, before the
corpus is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Protocol

import numpy.typing as npt

from isthmus.config import Settings
from isthmus.nn.backbone import Backbone
from isthmus.pretraining.step import Step
from isthmus.text.corpus import TokenisedCorpus
from isthmus.text.tokenizer import Tokenizer

# What stands for a text when it is searched: a pooled state, or weights of the vocabulary.
Vector = Literal["cls", "mean", "lexicon"]
# Which tokens: every one, those with a label, the first of each text.
Reads = Literal["all", "labels", "first"]
# Of which number: what its rate hides, all tokens that are not special, these and the end of each
# text, the encoder's labels.
Most = Literal["budget", "tokens", "tokens and ends", "labels"]


class Column(Protocol):
    """Something known of every token of a corpus: `column[row]` has one entry per token."""

    def __getitem__(self, row: int, /) -> npt.NDArray[Any]: ...


class Part:
    """A named choice with settings of its own."""

    Settings: ClassVar[type[Settings]] = Settings
    requires: frozenset[str] = frozenset()
    provides: frozenset[str] = frozenset()
    reads: Reads = "all"  # of the hidden states, where it requires them
    # The bound of the labels that it makes. None: finding them synchronises with the device.
    most: Most | None = None
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
        """Fingerprints of what the part reads beside corpus and model; raises without settings.

        Called before training starts, and not where a recipe is only shown.
        """
        return {}

    def most_labels(self, step: Step) -> int | None:
        """An upper bound of the labels that the part adds to a batch, without synchronisation."""
        texts, places = len(step["input_ids"]), step.get("regular")
        match self.most:
            case "budget":
                return step.budget(self.settings.rate)
            case "labels":
                places = step.get("label_places")
        if self.most is None or places is None:
            return None
        return len(places) + (texts if self.most == "tokens and ends" else 0)
