"""Transformer layers in plain PyTorch, for decoders: any visibility, one or two streams."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn
from torch.nn.functional import dropout, scaled_dot_product_attention

from isthmus.errors import SettingsError
from isthmus.nn.attention import packed_attention
from isthmus.nn.backbone import Backbone
from isthmus.nn.packing import Full, Packing

# Where an architecture keeps its layers, and in each layer the modules that `Layer` calls query,
# key, value, output, attention_norm, expand, contract, feed_forward_norm. Not here: MPNet adds a
# bias by relative position, ModernBERT norms first, gates and rotates.
_BERT = (
    "encoder.layer",
    (
        "attention.self.query", "attention.self.key", "attention.self.value",
        "attention.output.dense", "attention.output.LayerNorm",
        "intermediate.dense", "output.dense", "output.LayerNorm",
    ),
)  # fmt: skip
_DISTILBERT = (
    "transformer.layer",
    (
        "attention.q_lin", "attention.k_lin", "attention.v_lin", "attention.out_lin",
        "sa_layer_norm", "ffn.lin1", "ffn.lin2", "output_layer_norm",
    ),
)  # fmt: skip
_COPIED = {
    "bert": _BERT,
    "camembert": _BERT,
    "distilbert": _DISTILBERT,
    "electra": _BERT,
    "roberta": _BERT,
    "xlm-roberta": _BERT,
}

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


class Layer(nn.Module):
    """Multi-head attention and a feed-forward network, each with a residual and a LayerNorm.

    Weights are drawn from torch's global generator: N(0, 0.02), no biases, unit norms.
    """

    def __init__(self, shape: LayerShape, norm: Literal["post", "pre"] = "post") -> None:
        from transformers.activations import ACT2FN

        super().__init__()
        self.shape = shape
        self.norm = norm
        self.query = nn.Linear(shape.width, shape.width)
        self.key = nn.Linear(shape.width, shape.width)
        self.value = nn.Linear(shape.width, shape.width)
        self.output = nn.Linear(shape.width, shape.width)
        self.attention_norm = nn.LayerNorm(shape.width, eps=shape.norm_epsilon)
        self.expand = nn.Linear(shape.width, shape.intermediate)
        self.activation: nn.Module = ACT2FN[shape.activation]
        self.contract = nn.Linear(shape.intermediate, shape.width)
        self.feed_forward_norm = nn.LayerNorm(shape.width, eps=shape.norm_epsilon)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)

    def forward(
        self, states: Tensor, visible: Tensor | Packing | Full, content: Tensor | None = None
    ) -> Tensor:
        """The states [batch, queries, width] after they attended to the content they may see.

        Args:
            states: What asks; every residual comes from here.
            visible: Boolean, broadcastable to [batch, heads, queries, keys]. A row that sees
                nothing attends to nothing: it gets the output's bias alone. Or the packing of a
                stream [1, tokens, width], or that texts have no padding at all.
            content: What answers [batch, keys, width]; the states themselves by default.

        """
        if self.norm == "post":
            attended = self.attention_norm(states + self._attend(states, visible, content))
            normed: Tensor = self.feed_forward_norm(attended + self._feed_forward(attended))
            return normed
        if content is not None:
            content = self.attention_norm(content)
        attended = states + self._attend(self.attention_norm(states), visible, content)
        return attended + self._feed_forward(self.feed_forward_norm(attended))

    def _attend(
        self, states: Tensor, visible: Tensor | Packing | Full, content: Tensor | None
    ) -> Tensor:
        content = states if content is None else content
        asked = (
            self._heads(self.query(states)),
            self._heads(self.key(content)),
            self._heads(self.value(content)),
        )
        rate = self.shape.attention_dropout if self.training else 0.0
        if isinstance(visible, Packing):
            answer = packed_attention(asked, visible, rate)
        elif isinstance(visible, Full):
            answer = scaled_dot_product_attention(*asked, dropout_p=rate, is_causal=visible.causal)
        else:
            answer = scaled_dot_product_attention(*asked, attn_mask=visible, dropout_p=rate)
        return self._dropped(self.output(answer.transpose(1, 2).flatten(2)))

    def _feed_forward(self, states: Tensor) -> Tensor:
        return self._dropped(self.contract(self.activation(self.expand(states))))

    def _heads(self, states: Tensor) -> Tensor:
        return states.view(*states.shape[:2], self.shape.heads, -1).transpose(1, 2)

    def _dropped(self, states: Tensor) -> Tensor:
        return dropout(states, self.shape.dropout, self.training)


def copy_layer(backbone: Backbone, number: int, layer: Layer) -> None:
    """Copies the weights of the backbone's layer `number`, from 0, into a post-norm layer."""
    assert layer.norm == "post", "a pre-norm layer computes something else with the same weights"
    kind = backbone.config.model_type
    if kind not in _COPIED:
        raise SettingsError(
            f"the layers of a {kind!r} model cannot be copied into a decoder's plain ones",
            where="decoder.init",
            allowed=f"random; copies of the layers of {', '.join(sorted(_COPIED))}",
            remedy="--set decoder.init=random",
        )
    if not 0 <= number < backbone.depth:
        raise SettingsError(
            f"there is no layer {number} to copy: the model has {backbone.depth} layers",
            where="decoder.init",
            allowed=f"layers 0 to {backbone.depth - 1}, last, random",
            remedy="name layers that exist, or --set decoder.init=random",
        )
    place, names = _COPIED[kind]
    source: nn.Module = backbone.encoder.get_submodule(f"{place}.{number}")
    targets = (
        layer.query, layer.key, layer.value, layer.output, layer.attention_norm,
        layer.expand, layer.contract, layer.feed_forward_norm,
    )  # fmt: skip
    for name, target in zip(names, targets, strict=True):
        target.load_state_dict(source.get_submodule(name).state_dict())
