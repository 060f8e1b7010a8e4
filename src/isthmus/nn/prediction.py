"""A head's prediction of the vocabulary, before the product with the vocabulary's matrix.

[tokens, vocabulary] logits are by far the largest tensors of masked-language modelling: with 30,522
terms, each token has 80 times more logits than a small encoder has states. Losses and maxima need
them for a moment only, and hold a few rows of them at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as functional
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from isthmus.nn.kernels.cross_entropy import Bags, Targets, summed_cross_entropy
from isthmus.nn.kernels.lexicon import largest_logits
from isthmus.nn.numerics import product_type
from isthmus.nn.vocabulary_product import aligned, rows_at_once

_COPIES = 4  # of logits, that weighing them holds at once


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
        step = rows_at_once(_COPIES * inside.shape[1] * len(self.matrix), features.device)

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
