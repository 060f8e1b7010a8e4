"""What many tests begin with."""

from __future__ import annotations

from typing import Any

from transformers import BertConfig

WITHOUT_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def bert(vocabulary: int, **changes: Any) -> BertConfig:
    """A small BERT whose random weights are large enough to tell texts apart."""
    shape = {
        "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
        "intermediate_size": 32, "max_position_embeddings": 64, "initializer_range": 0.3,
    }  # fmt: skip
    return BertConfig(vocab_size=vocabulary, **{**shape, **changes})
