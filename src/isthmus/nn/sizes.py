"""Encoders from nothing, by size: the shapes of the published BERT miniatures."""

from __future__ import annotations

from typing import Any

import torch

from isthmus.errors import SettingsError, choices
from isthmus.nn.backbone import Backbone

# Turc et al. 2019, "Well-Read Students Learn Better": layers, width.
SIZES = {"tiny": (2, 128), "mini": (4, 256), "small": (4, 512), "base": (12, 768)}


def check_size(size: str) -> None:
    """Refuses a size that does not exist."""
    if size not in SIZES:
        raise SettingsError(
            f"there is no size {size!r}",
            where="--init",
            allowed=choices(size, SIZES),
            remedy="choose one of these, or give a model with --model",
        )


def new_backbone(
    size: str, vocabulary: int, pad_id: int, max_length: int = 512, seed: int = 0
) -> Backbone:
    """A BERT with a masked-LM head and random weights, the same for the same seed."""
    from transformers import BertConfig, BertForMaskedLM

    check_size(size)
    layers, width = SIZES[size]
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
