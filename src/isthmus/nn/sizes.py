"""Encoders from nothing, by size."""

from __future__ import annotations

from typing import Any

import torch

from isthmus.nn.backbone import Backbone
from isthmus.nn.shapes import shape_of


def new_backbone(
    size: str, vocabulary: int, pad_id: int, max_length: int = 512, seed: int = 0
) -> Backbone:
    """A BERT with a masked-LM head and random weights, the same for the same seed."""
    from transformers import BertConfig, BertForMaskedLM

    layers, width = shape_of(size)
    config: Any = BertConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        intermediate_size=4 * width,
        max_position_embeddings=max_length,
        pad_token_id=pad_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Backbone(BertForMaskedLM(config))
