"""Heads that predict the vocabulary from hidden states, on chosen rows."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as functional
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from isthmus.nn.architectures import ARCHITECTURES, head_modules
from isthmus.nn.kernels.available import Untouched, has_kernels
from isthmus.nn.kernels.lexicon import largest_logits
from isthmus.nn.kernels.norm_gelu import bias_gelu, drop_add_norm
from isthmus.nn.losses import Bags, Targets, aligned, rows_at_once, summed_cross_entropy
from isthmus.nn.numerics import product_type


class VocabularyLayer(nn.Linear):
    """The last layer of a head, which returns its input while a prediction is made."""

    aside = threading.local()  # two threads may share a model

    def forward(self, features: Tensor) -> Tensor:
        """The logits, or the features of a prediction."""
        return features if getattr(self.aside, "now", False) else super().forward(features)


def predict(model: Any, states: Tensor, kernels: bool) -> Prediction:
    """What the masked-LM head of a model predicts from hidden states [..., width].

    The vocabulary's layer must be a `VocabularyLayer`. `kernels`: by those of ours, which take a
    head of a matrix, GELU and a LayerNorm.
    """
    vocabulary = model.get_output_embeddings()
    if kernels:
        transform = ARCHITECTURES[model.config.model_type].transform
        assert transform is not None
        dense, norm = map(model.get_submodule, transform)
        active = bias_gelu(functional.linear(states, dense.weight), dense.bias)
        states = drop_add_norm(active, None, None, norm, 0.0)[0]
        return Prediction(states, vocabulary.weight, vocabulary.bias)
    modules = head_modules(model)
    assert modules is not None, "loaded without a head"
    VocabularyLayer.aside.now = True
    try:
        for module in modules:
            states = module(states)
    finally:
        VocabularyLayer.aside.now = False
    return Prediction(states, vocabulary.weight, vocabulary.bias)


class TiedHead(nn.Module):
    """Dense, LayerNorm, times word embeddings that are not its own, plus a bias."""

    def __init__(self, width: int, embeddings: Tensor, norm_epsilon: float) -> None:
        super().__init__()
        terms, embedding_width = embeddings.shape
        self.dense = nn.Linear(width, embedding_width)
        self.norm = nn.LayerNorm(embedding_width, eps=norm_epsilon)
        self.bias = nn.Parameter(torch.zeros(terms))
        nn.init.normal_(self.dense.weight, std=0.02)
        nn.init.zeros_(self.dense.bias)
        self.untouched = Untouched(self)

    def forward(self, states: Tensor, embeddings: Tensor) -> Prediction:
        """What it predicts from hidden states, with the embeddings as the vocabulary's matrix."""
        if has_kernels(states) and self.untouched:
            projected = functional.linear(states, self.dense.weight)
            features, _ = drop_add_norm(projected, self.dense.bias, None, self.norm, 0.0)
        else:
            features = self.norm(self.dense(states))
        return Prediction(features, embeddings, self.bias)


COPIES = 4  # of logits, that weighing them holds at once


class Prediction(NamedTuple):
    """features · matrixᵀ + bias, for tokens [..., width] and a vocabulary [terms, width]."""

    features: Tensor
    matrix: Tensor
    bias: Tensor | None

    def logits(self) -> Tensor:
        """The whole product, [..., terms]."""
        dtype = product_type(self.features)  # first: what is aligned is copied
        bias = None if self.bias is None else self.bias.to(dtype)
        matrix, bias = aligned(self.matrix.to(dtype), bias)
        return functional.linear(self.features, matrix, bias)[..., : len(self.matrix)]

    def most_likely(self) -> Tensor:
        """The term of the largest logit of each token, for features [tokens, width]."""
        step = rows_at_once(len(self.matrix), self.features.device)
        parts = torch.split(self.features, step)
        found = [self._replace(features=part).logits().argmax(-1) for part in parts]
        return torch.cat(found)

    def largest(self, inside: Tensor) -> Tensor:
        """max_i logits_i over the positions i inside [rows, length], [rows, terms] in float32.

        For features [rows, length, width]. A row without a position inside gets 0.
        """
        return largest_logits(*self, inside, product_type(self.features)).float()

    def summed(self, inside: Tensor, weigh: Callable[[Tensor], Tensor]) -> Tensor:
        """Σ_i weigh(logits_i) over the positions i inside [rows, length], [rows, terms] in float32.

        For features [rows, length, width]. The backward pass computes logits anew, a few rows at a
        time: training holds no more of them than encoding.
        """
        features = torch.where(inside[:, :, None], self.features, 0)  # padding may be anything
        step = rows_at_once(COPIES * inside.shape[1] * len(self.matrix), features.device)

        def add(part: Tensor, mask: Tensor) -> Tensor:
            weights = weigh(self._replace(features=part).logits().float())
            return (weights * mask[:, :, None]).sum(1)

        # One row is never cut: a trace of the model (encoders/int8.py) would keep the size.
        if len(inside) <= 1:
            return add(features, inside)
        parts = zip(torch.split(features, step), torch.split(inside, step), strict=True)
        return torch.cat(
            [
                checkpoint(add, *part, use_reentrant=False, preserve_rng_state=False)
                if torch.is_grad_enabled()
                else add(*part)
                for part in parts
            ]
        )

    def cross_entropy(self, targets: Tensor) -> Tensor:
        """Σ -log softmax(logits)[target] over the tokens, in float32; 0 without tokens.

        A token with the target -100 adds nothing, and gets no gradient.
        """
        return summed_cross_entropy(*self, Targets(targets[:, None]), product_type(self.features))

    def bag_cross_entropy(self, bags: Tensor, sizes: Tensor) -> Tensor:
        """Σ over the tokens of the mean of -log softmax(logits) over a set of terms, in float32.

        bags: [tokens, terms], True for the terms of a set; sizes: how many these are. A token with
        an empty set adds nothing, and gets no gradient.
        """
        goal = Bags(bags, sizes[:, None])
        return summed_cross_entropy(*self, goal, product_type(self.features))
