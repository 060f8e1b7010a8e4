"""BERT's kind of layer over the modules that hold its weights, in as few passes as possible.

transformers computes the same with a kernel for every word of the formula. Here one product gives
queries, keys and values, and what lies between the products is in nn/fused.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from isthmus.nn.attention import Triple, packed_attention
from isthmus.nn.fused import bias_gelu, drop_add_norm
from isthmus.nn.layer_shape import LayerShape
from isthmus.nn.packing import Asking, Full, Masked, Packing, take_rows
from isthmus.nn.projection import Joined, multiply, project, project_whole, rounded, rounded_type
from isthmus.nn.short_attention import attend_shortly, attends_shortly

# What a row sees: the columns where it says True, those of its own text, some of them, or all.
Visible = Tensor | Packing | Masked | Full

# Where an architecture keeps its layers, and in each layer the modules of a `PostNorm`, in order.
# Not here: MPNet adds a bias by relative position, ModernBERT norms first, gates and rotates.
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
POST_NORM = {
    "bert": _BERT,
    "camembert": _BERT,
    "distilbert": _DISTILBERT,
    "electra": _BERT,
    "roberta": _BERT,
    "xlm-roberta": _BERT,
}
# DistilBERT drops nothing of what attention adds.
_ATTENTION_KEPT = frozenset({"distilbert"})


class Rates(NamedTuple):
    """Of the dropout of attention weights, of what attention adds, and of what the rest adds."""

    weights: float = 0.0
    attended: float = 0.0
    fed: float = 0.0


class Matrices(NamedTuple):
    """The weights of a layer as its products take them; nothing where autocast sees to it."""

    asked: Joined | None = None  # of queries, keys and values
    output: Tensor | None = None
    expand: Tensor | None = None
    contract: Tensor | None = None


class PostNorm(NamedTuple):
    """The modules of one layer, whoever owns them."""

    query: nn.Linear
    key: nn.Linear
    value: nn.Linear
    output: nn.Linear
    attention_norm: nn.LayerNorm
    expand: nn.Linear
    contract: nn.Linear
    feed_forward_norm: nn.LayerNorm

    def run(
        self,
        states: Tensor,
        kept: Tensor,
        visible: Visible,
        heads: int,
        rates: Rates,
        content: Tensor | None = None,
        dtype: torch.dtype | None = None,
        asking: Asking | None = None,
        matrices: Matrices | None = None,
    ) -> tuple[Tensor, Tensor]:
        """The states [batch, queries, width] after the layer, twice: `drop_add_norm` says why.

        Args:
            states: What is projected.
            kept: The same, for the residual.
            visible: What a row sees of the content.
            heads: Of attention.
            rates: Of dropout; none outside of training.
            content: What answers [batch, keys, width]; the states themselves by default.
            dtype: Of the result.
            asking: Where some tokens of a packed batch ask, whose states these are.
            matrices: Where they have been rounded with those of other layers.

        """
        if kept is states:
            # Once for the product and for the residual, which is of no other type.
            states = kept = rounded(states)
        if matrices is None:
            [matrices] = round_matrices([self], states)
        answer = self._attend(states, content, visible, heads, rates.weights, asking, matrices)
        states, kept = drop_add_norm(
            answer, self.output.bias, kept, self.attention_norm, rates.attended
        )
        fed = self._fed(states, matrices)
        return drop_add_norm(
            fed, self.contract.bias, kept, self.feed_forward_norm, rates.fed, dtype
        )

    def run_pre(
        self, states: Tensor, visible: Visible, heads: int, rates: Rates, norm: nn.LayerNorm
    ) -> Tensor:
        """The normed states after a layer that norms first and adds to what was not normed."""
        first, second = self.attention_norm, self.feed_forward_norm
        states, kept = drop_add_norm(rounded(states), None, None, first, 0.0, around=True)
        [matrices] = round_matrices([self], states)
        answer = self._attend(states, None, visible, heads, rates.weights, None, matrices)
        states, kept = drop_add_norm(
            answer, self.output.bias, kept, second, rates.attended, around=True
        )
        fed = self._fed(states, matrices)
        return drop_add_norm(fed, self.contract.bias, kept, norm, rates.fed)[0]

    def run_for_some(
        self,
        states: Tensor,
        packing: Packing,
        asking: Asking,
        heads: int,
        rates: Rates,
        dtype: torch.dtype | None,
        matrices: Matrices | None = None,
    ) -> Tensor:
        """The states of some tokens [1, places, width] after the layer.

        Keys and values are of all tokens of the batch, [1, tokens, width] or without padding; what
        asks, is added and goes on is of these alone.
        """
        content = rounded(states).flatten(0, 1)
        chosen = take_rows(content, packing.stream(asking.places))[None]
        content = content[None]
        given = chosen, chosen, packing, heads, rates, content, dtype, asking, matrices
        return self.run(*given)[0]

    def _fed(self, states: Tensor, matrices: Matrices) -> Tensor:
        active = bias_gelu(multiply(states, self.expand, matrices.expand), self.expand.bias)
        return multiply(active, self.contract, matrices.contract)

    def _attend(
        self,
        states: Tensor,
        content: Tensor | None,
        visible: Visible,
        heads: int,
        rate: float,
        asking: Asking | None,
        matrices: Matrices,
    ) -> Tensor:
        """What attention adds to the rows that ask, [batch, queries, width], without its bias."""
        parts, asked = (self.query, self.key, self.value), matrices.asked
        given: list[tuple[Tensor, tuple[nn.Linear, ...], Joined | None]] = [(states, parts, asked)]
        if content is not None:
            both = zip((states, content), (parts[:1], parts[1:]), _cut(asked), strict=True)
            given = list(both)
        width = self.query.out_features // heads
        short = isinstance(visible, Packing | Masked) and attends_shortly(states, visible, width)
        if short and asked is not None:
            assert isinstance(visible, Packing | Masked)
            projected, biases = zip(
                *(
                    project_whole(each, some, heads, joined)
                    for each, some, joined in given
                    if joined
                ),
                strict=True,
            )
            answer = attend_shortly(projected, biases, visible, rate, asking).flatten(1)[None]
        else:
            queries, keys, values = (
                part for each, some, joined in given for part in project(each, some, heads, joined)
            )
            answer = attend((queries, keys, values), visible, rate, asking)
            answer = answer.transpose(1, 2).flatten(2)
        return multiply(answer, self.output, matrices.output)


def _cut(asked: Joined | None) -> tuple[Joined | None, Joined | None]:
    """The queries' part, and that of keys and values."""
    if asked is None:
        return None, None
    (query, *_), (bias, *_) = (each.chunk(3) for each in asked)
    others = Joined(asked.weight[len(query) :], asked.bias[len(bias) :])
    return Joined(query, bias), others


@torch.no_grad()
def round_matrices(layers: Sequence[PostNorm], states: Tensor) -> list[Matrices]:
    """Of all layers at once, where they run on kernels of our own with these states."""
    dtype = rounded_type(states)
    if dtype is None:
        return [Matrices()] * len(layers)
    found, targets, sources = [], [], []
    for layer in layers:
        asking = (layer.query, layer.key, layer.value)
        width, own = layer.query.in_features, layer.query.out_features
        joined = Joined(
            states.new_empty(3 * own, width, dtype=dtype), states.new_empty(3 * own, dtype=dtype)
        )
        others = [layer.output.weight, layer.expand.weight, layer.contract.weight]
        made = [
            each if each.dtype == dtype else each.new_empty(each.shape, dtype=dtype)
            for each in others
        ]
        targets += [*joined.weight.chunk(3), *joined.bias.chunk(3)]
        sources += [*(part.weight for part in asking), *(part.bias for part in asking)]
        if made[0] is not others[0]:
            targets += made
            sources += others
        found.append(Matrices(joined, *made))
    torch._foreach_copy_(targets, sources)
    return found


class PostNormStack(NamedTuple):
    """All layers of an encoder of transformers."""

    layers: list[PostNorm]
    heads: int
    rates: Rates
    owner: list[nn.Module]  # that of the first one, in a list: a module would take it for its own

    @property
    def checkpointed(self) -> bool:
        """Whether transformers is to compute activations again, which it does in its own layers."""
        return bool(getattr(self.owner[0], "gradient_checkpointing", False))

    @classmethod
    def of(cls, model: Any) -> PostNormStack | None:
        """That of a model; None where its layers compute something else."""
        config = model.config
        if config.model_type not in POST_NORM:
            return None
        shape = LayerShape.of(config)
        if shape.activation != "gelu":
            return None
        attended = 0.0 if config.model_type in _ATTENTION_KEPT else shape.dropout
        rates = Rates(shape.attention_dropout, attended, shape.dropout)
        layers = post_norm_layers(model.base_model, config.model_type)
        place, _ = POST_NORM[config.model_type]
        return cls(layers, shape.heads, rates, [model.base_model.get_submodule(f"{place}.0")])

    def run(
        self,
        embedded: Tensor,
        visible: Visible,
        training: bool,
        layer: int | None = None,
        some: tuple[Packing, Asking] | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """The states after all layers, and those after `layer` of them where that is asked.

        Where only some tokens of a batch are read, the last states are theirs, [1, places, width].
        """
        rates = self.rates if training else Rates()
        states = kept = embedded
        seen = embedded if layer == 0 else None
        *others, last = self.layers
        matrices = round_matrices(self.layers, embedded)
        for number, each in enumerate(others, 1):
            states, kept = each.run(
                states, kept, visible, self.heads, rates, matrices=matrices[number - 1]
            )
            if number == layer:
                seen = states
        dtype = last_type(embedded)
        if some is None:
            states, _ = last.run(
                states, kept, visible, self.heads, rates, dtype=dtype, matrices=matrices[-1]
            )
        else:
            states = last.run_for_some(states, *some, self.heads, rates, dtype, matrices[-1])
        return states, states if layer == len(self.layers) else seen


def last_type(states: Tensor) -> torch.dtype | None:
    """That of the states after the last layer, where it is not that of the states before it.

    Under autocast torch norms in float32, and whoever reads them expects that.
    """
    return torch.float32 if torch.is_autocast_enabled(states.device.type) else None


def post_norm_layers(encoder: nn.Module, kind: str) -> list[PostNorm]:
    """The layers of an encoder of a known kind."""
    place, names = POST_NORM[kind]
    layers: Any = encoder.get_submodule(place)
    return [PostNorm(*(layer.get_submodule(name) for name in names)) for layer in layers]


def attend(asked: Triple, visible: Visible, rate: float, asking: Asking | None = None) -> Tensor:
    """What the rows that ask are answered, [batch, heads, queries, width]."""
    if isinstance(visible, Packing):
        return packed_attention(asked, visible, rate, asking=asking)
    if isinstance(visible, Masked):
        packing, seen = visible
        queries, keys, values = (
            packing.unpack(part.transpose(1, 2)).transpose(1, 2) for part in asked
        )
        answers = attend((queries, keys, values), seen[:, None], rate)
        return packing.pack(answers.transpose(1, 2)).transpose(1, 2)
    if isinstance(visible, Full):
        return scaled_dot_product_attention(*asked, dropout_p=rate, is_causal=visible.causal)
    return scaled_dot_product_attention(*asked, attn_mask=visible, dropout_p=rate)
