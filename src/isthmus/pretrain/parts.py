"""The parts a pre-training recipe is made of, and what each declares.

    document -> view -> corruption -> backbone -> objectives

A part names the fields of the step that it requires and those it provides. A recipe is checked
when it is assembled, before weights or data are read.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field
from torch import Tensor

from isthmus.config import Settings
from isthmus.nn.backbone import Backbone
from isthmus.registry import Registry
from isthmus.text.corpus import TokenisedDocument
from isthmus.text.tokenizer import Tokenizer
from isthmus.training.task import Batch

VIEWS = Registry("isthmus.pretrain.views", "view")
CORRUPTIONS = Registry("isthmus.pretrain.corruption", "corruption")
OBJECTIVES = Registry("isthmus.pretrain.objectives", "objective")

BACKBONE_PROVIDES = frozenset({"hidden_states"})


class Part:
    """A named choice with settings of its own."""

    Settings: ClassVar[type[Settings]] = Settings
    requires: ClassVar[frozenset[str]] = frozenset()
    provides: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, settings: Any) -> None:
        self.settings = settings


@dataclass(frozen=True, slots=True)
class Text:
    """What a view shows of a document: token ids without special ones, and the word of each."""

    tokens: npt.NDArray[np.int32]
    words: npt.NDArray[np.int32]


class View(Part, ABC):
    """Which text the encoder sees. Runs where data is read, on one document at a time."""

    provides = frozenset({"input_ids", "attention_mask", "words", "keys"})

    @abstractmethod
    def __call__(self, document: TokenisedDocument, room: int, key: int) -> Text:
        """The text, of at most `room` tokens, that `key` draws from the document."""


class Corruption(Part, ABC):
    """Which tokens are hidden. Runs on the training device, on whole batches."""

    requires = frozenset({"input_ids", "words", "keys"})
    provides = frozenset({"encoder_ids", "labels"})

    @abstractmethod
    def __call__(self, batch: Batch, vocabulary: Vocabulary) -> Batch:
        """The fields it provides; `labels` is the token where one was chosen, -100 elsewhere."""


class ObjectiveSettings(Settings):
    """What every objective can be told."""

    weight: float = Field(1.0, ge=0, description="of this loss in the sum")
    decay_to: float | None = Field(
        None, ge=0, description="share of the weight left at the last optimiser step, by cosine"
    )


class Objective(Part, ABC):
    """A loss on one encoder pass: a sum over items, and the number of items."""

    Settings = ObjectiveSettings

    @abstractmethod
    def count(self, step: Batch, vocabulary: Vocabulary) -> Tensor:
        """How many items the loss sums over."""

    @abstractmethod
    def __call__(
        self, step: Batch, backbone: Backbone, vocabulary: Vocabulary
    ) -> dict[str, Tensor]:
        """`{"": sum of the loss}`, and sums of further quantities worth a line in the log."""


class Vocabulary(torch.nn.Module):
    """What corruptions and objectives must know of the tokenizer, as tensors on their device."""

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
