"""What every supported backbone is: one row per model type of transformers.

A new architecture is a new row; tests/parity compares each with transformers' own results.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from torch import nn


class LayerModules(NamedTuple):
    """The modules of a post-norm layer of BERT's kind."""

    query: nn.Linear
    key: nn.Linear
    value: nn.Linear
    output: nn.Linear
    attention_norm: nn.LayerNorm
    expand: nn.Linear
    contract: nn.Linear
    feed_forward_norm: nn.LayerNorm


@dataclass(frozen=True)
class Architecture:
    """Where transformers keeps the parts of a model type, and what its configuration calls them."""

    # The modules that, applied in order, turn hidden states into vocabulary logits. transformers
    # has no common name for them, and calling the whole model would compute logits everywhere.
    # Empty: there is no masked-LM head, nor can one be added (T5's vocabulary is its decoder's).
    head: tuple[str, ...]
    # In the head, a matrix and a LayerNorm with GELU between them, before the vocabulary.
    transform: tuple[str, str] | None = None
    # Its post-norm layers, and in each the modules of `LayerModules`, in order. None: the layers
    # compute something else (MPNet and T5 add a bias by relative position, ModernBERT norms first).
    layers: str | None = None
    layer_modules: tuple[str, ...] = ()
    # Whether attention of ours computes its layers, and so texts without padding: it knows no
    # biases of positions, as MPNet and T5 have them.
    packs: bool = True
    drops_attended: bool = True  # whether dropout applies to what attention adds
    # The configuration's names.
    intermediate: str = "intermediate_size"
    dropout: str = "hidden_dropout_prob"
    attention_dropout: str = "attention_probs_dropout_prob"
    activation: str = "hidden_act"
    norm_epsilon: str | None = "layer_norm_eps"  # None: 1e-12, in transformers' code


_BERT = Architecture(
    head=("cls",),
    transform=("cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm"),
    layers="encoder.layer",
    layer_modules=(
        "attention.self.query", "attention.self.key", "attention.self.value",
        "attention.output.dense", "attention.output.LayerNorm",
        "intermediate.dense", "output.dense", "output.LayerNorm",
    ),
)  # fmt: skip
_ROBERTA = replace(_BERT, head=("lm_head",), transform=("lm_head.dense", "lm_head.layer_norm"))
_DISTILBERT = Architecture(
    head=("vocab_transform", "activation", "vocab_layer_norm", "vocab_projector"),
    transform=("vocab_transform", "vocab_layer_norm"),
    layers="transformer.layer",
    layer_modules=(
        "attention.q_lin", "attention.k_lin", "attention.v_lin", "attention.out_lin",
        "sa_layer_norm", "ffn.lin1", "ffn.lin2", "output_layer_norm",
    ),
    drops_attended=False,
    intermediate="hidden_dim",
    dropout="dropout",
    attention_dropout="attention_dropout",
    activation="activation",
    norm_epsilon=None,
)  # fmt: skip
_ELECTRA = replace(
    _BERT,
    head=("generator_predictions", "generator_lm_head"),
    transform=("generator_predictions.dense", "generator_predictions.LayerNorm"),
)
_MODERNBERT = Architecture(
    head=("head", "decoder"),
    dropout="mlp_dropout",
    attention_dropout="attention_dropout",
    activation="hidden_activation",
    norm_epsilon="norm_eps",
)
ARCHITECTURES = {
    "bert": _BERT,
    "camembert": _ROBERTA,
    "distilbert": _DISTILBERT,
    "electra": _ELECTRA,
    "modernbert": _MODERNBERT,
    "mpnet": Architecture(head=("lm_head",), packs=False),
    "roberta": _ROBERTA,
    "t5": Architecture(head=(), packs=False),
    "xlm-roberta": _ROBERTA,
}
# The model types whose layers are of BERT's kind.
POST_NORM = tuple(kind for kind, each in ARCHITECTURES.items() if each.layers is not None)
# Those with a masked-LM head.
MASKED_LM = tuple(kind for kind, each in ARCHITECTURES.items() if each.head)
# The names of all dropout rates, and of all sizes, that any configuration has.
DROPOUTS = (
    "hidden_dropout_prob", "attention_probs_dropout_prob", "dropout", "attention_dropout",
    "embedding_dropout", "mlp_dropout", "classifier_dropout", "dropout_rate",
)  # fmt: skip
SIZES = {
    "hidden_size": ("hidden_size", "dim", "d_model"),
    "num_hidden_layers": ("num_hidden_layers", "n_layers", "num_layers"),
    "intermediate_size": ("intermediate_size", "hidden_dim", "d_ff"),
    "num_attention_heads": ("num_attention_heads", "n_heads", "num_heads"),
    "vocab_size": ("vocab_size",),
    "type_vocab_size": ("type_vocab_size",),
    "max_position_embeddings": ("max_position_embeddings",),
    "head_width": ("d_kv",),  # elsewhere, the heads share the width of the states
    "relative_attention_num_buckets": ("relative_attention_num_buckets",),
}


@dataclass(frozen=True)
class LayerShape:
    """The sizes and rates that a model's layers share; `activation` as transformers names it."""

    width: int
    heads: int
    intermediate: int
    dropout: float
    attention_dropout: float
    activation: str
    norm_epsilon: float

    @classmethod
    def of(cls, config: Any) -> LayerShape:
        """The shape of the layers that a configuration of transformers describes."""
        names = ARCHITECTURES.get(config.model_type, _BERT)
        epsilon = names.norm_epsilon
        return cls(
            width=config.hidden_size,
            heads=config.num_attention_heads,
            intermediate=getattr(config, names.intermediate),
            dropout=getattr(config, names.dropout),
            attention_dropout=getattr(config, names.attention_dropout),
            activation=getattr(config, names.activation),
            norm_epsilon=1e-12 if epsilon is None else getattr(config, epsilon),
        )


def layers_of(model: Any) -> list[LayerModules]:
    """The layers of a model whose type is in `POST_NORM`."""
    known = ARCHITECTURES[model.config.model_type]
    assert known.layers is not None
    layers: Any = model.base_model.get_submodule(known.layers)
    return [LayerModules(*map(layer.get_submodule, known.layer_modules)) for layer in layers]


def head_modules(model: Any) -> list[nn.Module] | None:
    """The modules of a model's masked-LM head, in order; None where it has no such head."""
    known = ARCHITECTURES.get(model.config.model_type)
    # A classifier may have a part by the same name: ModernBERT's `head`.
    if known is None or not known.head or not all(hasattr(model, name) for name in known.head):
        return None
    return [getattr(model, name) for name in known.head]
