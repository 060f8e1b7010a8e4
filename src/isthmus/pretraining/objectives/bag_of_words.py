"""Bag of words: one vector predicts the set of the text's tokens; no decoder, nearly free.

"Drop your Decoder" (SIGIR 2024), equation 12. The equation writes h·Eᵀ; the authors' code uses the
full masked-LM head, and so does the default here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from isthmus.errors import SettingsError
from isthmus.nn.backbone import Backbone
from isthmus.nn.heads import Prediction
from isthmus.pretraining.labels import Vocabulary
from isthmus.pretraining.parts import (
    Objective,
    ObjectiveSettings,
    Vector,
    first_states,
    mean_states,
)
from isthmus.pretraining.registries import objective
from isthmus.text.tokenizer import Tokenizer
from isthmus.training.task import Batch


class BagOfWordsSettings(ObjectiveSettings):
    """What predicts, and through what."""

    projection: Literal["head", "embeddings"] = "head"
    vector: Literal["cls", "mean", "max"] = Field(
        "cls",
        description="what predicts: one state, or max: of each term the largest logit over the "
        "text's ordinary tokens",
    )
    target: Literal["own", "partner"] = Field(
        "own", description="the bag of the text itself, or of its neighbour where a view shows two"
    )


@objective("bag_of_words")
class BagOfWords(Objective):
    """Bag of words: one vector predicts the set of the text's tokens; no decoder, nearly free.

    "Drop your Decoder" (SIGIR 2024), equation 12. The equation writes h·Eᵀ; the authors' code uses
    the full masked-LM head, and so does the default here.

    -(1/|T|) Σ_{t in T} log softmax(head(H_0))_t, T the set of the unmasked text's tokens.

    `vector: mean` predicts from the mean of the hidden states instead of [CLS], for encoders that
    will retrieve with mean pooling; `target: partner` predicts the neighbouring text of a view that
    shows two, CoT-MAE without its decoder (neither is in the paper). `vector: max` is the bag of
    DupMAE (ACL 2023): the logits are max_i head(H_i), over tokens i that are not special.
    """

    Settings = BagOfWordsSettings
    settings: BagOfWordsSettings
    requires = frozenset({"hidden_states", "input_ids", "attention_mask", "partner"})
    setting_to_train: ClassVar[Mapping[Vector, str]] = {"cls": "vector=cls", "mean": "vector=mean"}

    def __init__(self, settings: BagOfWordsSettings) -> None:
        super().__init__(settings)
        self.reads = "first" if settings.vector == "cls" else "all"
        self.trains = None if settings.vector == "max" else settings.vector

    def build(self, backbone: Backbone, tokenizer: Tokenizer) -> None:
        """Refuses the literal equation where hidden states and embeddings differ in width."""
        self.uses_head = self.settings.projection == "head"
        if not self.uses_head and backbone.embedding_width != backbone.dimension:
            raise SettingsError(
                f"objectives.bag_of_words.projection: hidden states are {backbone.dimension} "
                f"wide, word embeddings {backbone.embedding_width}, and so have no product",
                "--set objectives.bag_of_words.projection=head",
            )

    def count(self, step: Batch, vocabulary: Vocabulary) -> Tensor:
        """The texts with at least one token that is not special."""
        # A partner's bag counts once for its partner: the number is the same for both targets.
        return (~vocabulary.is_special(step["input_ids"])).any(1).sum()

    def __call__(
        self, step: Batch, backbone: Backbone, vocabulary: Vocabulary
    ) -> dict[str, Tensor]:
        """The summed loss, and its summed distance from the lower bound log|T|."""
        input_ids = step["input_ids"]
        inside = ~vocabulary.is_special(input_ids)
        if self.settings.target == "partner":
            input_ids = input_ids[step["partner"]]
        bags = token_sets(input_ids, vocabulary.special)
        sizes = bags.sum(1)
        if self.settings.vector == "max":
            largest = self._predict(step["hidden_states"], backbone).largest(inside)
            loss = bag_of_words(largest, bags).sum()
        else:
            vector = first_states(step) if self.settings.vector == "cls" else mean_states(step)
            loss = self._predict(vector, backbone).bag_cross_entropy(bags, sizes)
        # The bound of an empty bag is 0, as its loss.
        bound = sizes.clamp(min=1).to(loss.dtype).log().sum()
        return {"": loss, "gap": loss.detach() - bound}

    def _predict(self, states: Tensor, backbone: Backbone) -> Prediction:
        if self.settings.projection == "head":
            return backbone.predict(states)
        return Prediction(states, backbone.word_embeddings, None)


def token_sets(ids: Tensor, special: Tensor) -> Tensor:
    """True at [row, token] where the row holds that token; `special` is True for what counts not.

    It has an entry for every token of the vocabulary.
    """
    nothing = ids.new_zeros(len(ids), len(special), dtype=torch.bool)
    return nothing.scatter_(1, ids, ~special[ids])


def bag_of_words(logits: Tensor, bags: Tensor) -> Tensor:
    """The loss of each row, in float32; 0 for an empty bag."""
    logits = logits.float()
    sizes = bags.sum(1)
    inside = torch.where(bags, logits, 0).sum(1) / sizes.clamp(min=1)
    return torch.where(sizes > 0, logits.logsumexp(1) - inside, 0)
