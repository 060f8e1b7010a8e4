"""A tiny T5 encoder as GTR is published: a mean, a Dense layer and length 1."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from torch import nn
from transformers import T5Config, T5EncoderModel, T5Tokenizer


def save_t5(folder: Path, words: Iterable[str]) -> Path:
    """Writes a plain encoder with random weights, and a tokenizer of these words and letters."""
    known = dict.fromkeys(words)
    pieces = {"▁": -2.0, **{f"▁{word}": -4.0 for word in known}}
    pieces |= dict.fromkeys(sorted(set("".join(known))), -8.0)
    special = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    tokenizer = T5Tokenizer([*special, *pieces.items()], extra_ids=2)
    torch.manual_seed(0)
    config = T5Config(
        vocab_size=len(tokenizer) + 3, d_model=16, d_kv=6, d_ff=32, num_layers=2, num_heads=2,
        relative_attention_num_buckets=8, relative_attention_max_distance=12,
    )  # fmt: skip
    model = T5EncoderModel(config)
    with torch.no_grad():  # which tokens stand where must matter
        model.encoder.block[0].layer[0].SelfAttention.relative_attention_bias.weight.normal_()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def save_gtr(folder: Path, words: Iterable[str], length: int = 24) -> SentenceTransformer:
    """Writes such a model as sentence-transformers does, and gives it back as it loads there."""
    plain = save_t5(folder.with_name(f"{folder.name}-plain"), words)
    modules = [
        Transformer(str(plain), max_seq_length=length),
        Pooling(16, "mean"),
        Dense(16, 12, bias=False, activation_function=nn.Identity()),
        Normalize(),
    ]
    there = SentenceTransformer(modules=modules, device="cpu")
    there.save(str(folder), create_model_card=False)
    return SentenceTransformer(str(folder), device="cpu")
