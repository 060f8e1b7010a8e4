"""Heads that predict the vocabulary from hidden states, on chosen rows."""

from __future__ import annotations

import threading
from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from isthmus.nn.architectures import ARCHITECTURES, head_modules
from isthmus.nn.kernels.available import has_kernels
from isthmus.nn.kernels.norm_gelu import bias_gelu, drop_add_norm
from isthmus.nn.prediction import Prediction


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

    def forward(self, states: Tensor, embeddings: Tensor) -> Prediction:
        """What it predicts from hidden states, with the embeddings as the vocabulary's matrix."""
        if has_kernels(states):
            projected = functional.linear(states, self.dense.weight)
            features, _ = drop_add_norm(projected, self.dense.bias, None, self.norm, 0.0)
        else:
            features = self.norm(self.dense(states))
        return Prediction(features, embeddings, self.bias)
