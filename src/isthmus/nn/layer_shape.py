"""The sizes and rates of a transformer layer, by whatever names a configuration has for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

# What configurations call intermediate, dropout, attention_dropout, activation, norm_epsilon.
_BERT_NAMES = (
    "intermediate_size", "hidden_dropout_prob", "attention_probs_dropout_prob", "hidden_act",
    "layer_norm_eps",
)  # fmt: skip
_NAMES = {
    "distilbert": ("hidden_dim", "dropout", "attention_dropout", "activation", None),
    "modernbert": (
        "intermediate_size", "mlp_dropout", "attention_dropout", "hidden_activation", "norm_eps",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class LayerShape:
    """What makes two layers alike but for their weights; `activation` as transformers names it."""

    width: int
    heads: int
    intermediate: int
    dropout: float
    attention_dropout: float
    activation: str
    norm_epsilon: float

    @classmethod
    def of(cls, config: Any) -> LayerShape:
        """The shape of the layers that a Hugging Face configuration describes."""
        names = _NAMES.get(config.model_type, _BERT_NAMES)
        intermediate, dropout, attention_dropout, activation, norm_epsilon = names
        return cls(
            width=config.hidden_size,
            heads=config.num_attention_heads,
            intermediate=getattr(config, intermediate),
            dropout=getattr(config, dropout),
            attention_dropout=getattr(config, attention_dropout),
            activation=getattr(config, activation),
            # DistilBERT's is in its code.
            norm_epsilon=1e-12 if norm_epsilon is None else getattr(config, norm_epsilon),
        )
