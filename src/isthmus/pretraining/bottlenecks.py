"""Bottlenecks: the one vector per text that passes from encoder to decoder."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from isthmus.config import Settings
from isthmus.nn.backbone import Backbone
from isthmus.pretraining.parts import Part, Vector
from isthmus.pretraining.registries import bottleneck
from isthmus.pretraining.step import Step
from isthmus.text.tokenizer import Tokenizer


class Bottleneck(Part, nn.Module, ABC):
    """What passes from encoder to decoder: one vector per row."""

    requires = frozenset({"hidden_states"})
    provides = frozenset({"bottleneck"})
    trains: Vector | None = "cls"

    @abstractmethod
    def forward(self, step: Step) -> Tensor:
        """The vectors [rows, width]."""


@bottleneck("cls")
class Cls(Bottleneck):
    """The [CLS] state itself.

    H_0.
    """

    reads = "first"

    def forward(self, step: Step) -> Tensor:
        """The vectors [rows, width]."""
        return step.first()


@bottleneck("projected_cls")
class ProjectedCls(Bottleneck):
    """The [CLS] state through a linear map with bias, which is dropped with the decoder (CDMAE).

    W H_0 + c.
    """

    reads = "first"

    def build(self, backbone: Backbone, tokenizer: Tokenizer) -> None:
        """A square map, random as the decoder's own."""
        self.projection = nn.Linear(backbone.dimension, backbone.dimension)
        nn.init.normal_(self.projection.weight, std=0.02)
        nn.init.zeros_(self.projection.bias)

    def forward(self, step: Step) -> Tensor:
        """The vectors [rows, width]."""
        projected: Tensor = self.projection(step.first())
        return projected


@bottleneck("mean")
class Mean(Bottleneck):
    """The mean of the hidden states, for encoders that retrieve with it.

    The mean of H over the tokens of a text.
    """

    requires = frozenset({"hidden_states", "attention_mask"})
    trains = "mean"

    def forward(self, step: Step) -> Tensor:
        """The vectors [rows, width]."""
        return step.mean()


class LexiconSettings(Settings):
    """How vocabulary logits become weights."""

    form: Literal["softmax", "saturated"] = "softmax"
    embedded: bool = Field(
        True, description="a decoder reads it embedded as a word is, position added and normed"
    )


@bottleneck("lexicon")
class Lexicon(Bottleneck):
    """A distribution over the vocabulary, times the word embeddings (LexMAE, ICLR 2023).

    b = stop_gradient(E)ᵀ a, a = softmax(max_i head(H_i)) or log1p(relu(max_i head(H_i))) / sum.

    The maximum runs over the positions of tokens that are not special; a token that the encoder
    sees as [MASK] is one of them. The saturated form is the weight of a sparse retriever, so its
    encoder can search without fine-tuning. Only E in b is detached, nothing else.

    b is a mean of word embeddings, and so takes the place of the word embedding of [CLS]. As it is
    (`embedded` false), it is 30 times shorter than the rows around it, and a decoder hardly learns
    to read it: docs/experiments.md.
    """

    Settings = LexiconSettings
    settings: LexiconSettings
    requires = frozenset({"hidden_states", "input_ids"})
    uses_head = True
    trains = "lexicon"
    finetune_with = "lexmae-sparse"

    def forward(self, step: Step) -> Tensor:
        """The vectors [rows, width]."""
        inside, backbone = ~step.special(), step.backbone
        largest = backbone.predict(step["hidden_states"]).largest(inside)
        weights = shares(largest, inside.any(1, keepdim=True), self.settings.form)
        # In the precision of training, as the embeddings of the text beside it.
        vectors = weights @ backbone.word_embeddings.detach().to(weights.dtype)
        return (
            backbone.embed_first(vectors) if self.settings.embedded else backbone.to_width(vectors)
        )


def shares(largest: Tensor, known: Tensor, form: Literal["softmax", "saturated"]) -> Tensor:
    """A [rows, vocabulary] of the largest logits, in float32; all 0 for a row that is not known."""
    if form == "softmax":
        weights = largest.softmax(1)
    else:
        weights = largest.relu().log1p()
        # A row whose every logit is negative has no weight to share out.
        weights = weights / weights.sum(1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny)
    return torch.where(known, weights, 0)
