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

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Protocol

import numpy.typing as npt
import torch
from torch import Tensor

from isthmus.config import Settings
from isthmus.errors import SettingsError
from isthmus.nn.backbone import Backbone
from isthmus.nn.randomness import draw, draw_together
from isthmus.pretraining.corruption._budget import MaskingSettings, replace
from isthmus.pretraining.labels import IGNORED, Vocabulary
from isthmus.text.corpus import TokenisedCorpus
from isthmus.text.tokenizer import Tokenizer
from isthmus.training.task import Batch

BACKBONE_PROVIDES = frozenset({"hidden_states", "middle_states"})
Side = Literal["encoder", "decoder"]
# What stands for a text when it is searched: a pooled state, or weights of the vocabulary.
Vector = Literal["cls", "mean", "lexicon"]
# Which tokens: every one, those with a label, the first of each text.
Reads = Literal["all", "labels", "first"]
_ACTION_STREAM = 4
_MORE = 1  # numbers of a row that are drawn ahead, beside one for every token


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


class Corruption(Part, ABC):
    """Which tokens are hidden. Runs on the training device, on whole batches.

    The decoder's side draws from streams of its own, so both sides are independent unless a
    corruption says otherwise.
    """

    Settings = MaskingSettings
    requires = frozenset({"input_ids", "words", "keys"})
    provides = frozenset({"encoder_ids", "labels"})
    decoder_provides: ClassVar[frozenset[str]] = frozenset({"decoder_ids", "decoder_labels"})
    sides: ClassVar[tuple[Side, ...]] = ("encoder", "decoder")
    streams: ClassVar[tuple[int, ...]] = ()  # of random numbers, beside that of `hide`

    def __init__(self, settings: Any, side: Side = "encoder") -> None:
        super().__init__(settings)
        self.side = side
        if side == "decoder":
            self.provides = self.decoder_provides

    def beside(self, encoder: Corruption | None) -> None:
        """Adapts to the encoder's corruption, or raises; None: this is it, or there is none."""

    def stream(self, number: int) -> int:
        """The stream of random numbers for a use, on this side."""
        return number if self.side == "encoder" else number + 16

    def draw(self, batch: Batch, number: int, more: int = 0) -> Tensor:
        """A 63-bit integer from this side's stream for every token, and `more` for each row."""
        width = batch["input_ids"].shape[1] + more
        ahead = batch.get(f"drawn/{number}")
        return (
            draw(batch["keys"], self.stream(number), width) if ahead is None else ahead[:, :width]
        )

    @abstractmethod
    def choose(self, batch: Batch, vocabulary: Vocabulary) -> Tensor:
        """True at the tokens to hide."""

    def hide(self, batch: Batch, chosen: Tensor, vocabulary: Vocabulary) -> Tensor:
        """The ids with the chosen tokens hidden."""
        drawn = self.draw(batch, _ACTION_STREAM)
        return replace(batch["input_ids"], chosen, drawn, vocabulary, self.settings)

    def labels(self, batch: Batch, chosen: Tensor, vocabulary: Vocabulary) -> Tensor:
        """The token where one must be predicted, -100 elsewhere."""
        return torch.where(chosen, batch["input_ids"], IGNORED)

    def labels_nothing(self) -> bool:
        """Whether no token of any text is there to be predicted."""
        return getattr(self.settings, "rate", 1) == 0

    def __call__(self, batch: Batch, vocabulary: Vocabulary) -> Batch:
        """Ids and labels, under the names of this side."""
        # Drawn at once: on a GPU the launches cost more than the numbers.
        numbers = (*self.streams, _ACTION_STREAM)
        streams = [self.stream(number) for number in numbers]
        drawn = draw_together(batch["keys"], streams, batch["input_ids"].shape[1] + _MORE)
        batch = batch | {f"drawn/{n}": values for n, values in zip(numbers, drawn, strict=True)}
        chosen = self.choose(batch, vocabulary)
        ids, labels = (
            ("encoder_ids", "labels")
            if self.side == "encoder"
            else ("decoder_ids", "decoder_labels")
        )
        return {
            ids: self.hide(batch, chosen, vocabulary),
            labels: self.labels(batch, chosen, vocabulary),
        }


def first_states(step: Batch) -> Tensor:
    """H_0, the states of every text's first token, [rows, width]."""
    found = step.get("first_states")  # a step may begin with states of another's making
    return step["hidden_states"][:, 0] if found is None else found


def mean_states(step: Batch) -> Tensor:
    """The mean of the states of every text's tokens, [rows, width]."""
    states = step["hidden_states"]
    weights = step["attention_mask"][:, :, None].to(states.dtype)
    return (states * weights).sum(1) / weights.sum(1)
