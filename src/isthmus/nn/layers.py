"""Transformer layers in plain PyTorch, for decoders: any visibility, one or two streams."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn
from torch.nn.functional import dropout

from isthmus.errors import SettingsError
from isthmus.nn.architectures import POST_NORM, LayerShape, layers_of
from isthmus.nn.backbone import Backbone
from isthmus.nn.kernels.available import Untouched, has_kernels
from isthmus.nn.kernels.bert_layer import PostNorm, Rates, attend
from isthmus.nn.packing import Asking, Full, Packing, Visible, take_rows


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
        self.untouched = Untouched(self)

    def forward(self, states: Tensor, visible: Visible, content: Tensor | None = None) -> Tensor:
        """The states [batch, queries, width] after they attended to the content they may see.

        Args:
            states: The input of queries and residuals.
            visible: Boolean, broadcastable to [batch, heads, queries, keys]. A row that sees
                nothing gets the output's bias alone. Or the packing of a stream
                [1, tokens, width], or `Full` for texts without padding.
            content: The input of keys and values [batch, keys, width]; by default, the states.

        """
        if self._fuses(states):
            modules, rates = self._weights()
            return modules.run(states, states, visible, self.shape.heads, rates, content)[0]
        return self.plain(states, visible, content)

    def plain(self, states: Tensor, visible: Visible, content: Tensor | None) -> Tensor:
        """`forward` in plain torch."""
        if self.norm == "post":
            attended = self.attention_norm(states + self._attend(states, visible, content))
            normed: Tensor = self.feed_forward_norm(attended + self._feed_forward(attended))
            return normed
        if content is not None:
            content = self.attention_norm(content)
        attended = states + self._attend(self.attention_norm(states), visible, content)
        return attended + self._feed_forward(self.feed_forward_norm(attended))

    def _fuses(self, states: Tensor) -> bool:
        known = self.norm == "post" and self.shape.activation == "gelu"
        return known and has_kernels(states) and bool(self.untouched)

    def of_some(self, states: Tensor, packing: Packing, asking: Asking) -> Tensor:
        """The states of some tokens of a batch, [1, places, width]."""
        if not self._fuses(states):
            every = self(states, Full() if packing.whole else packing).flatten(0, 1)
            return take_rows(every, packing.stream(asking.places))[None]
        modules, rates = self._weights()
        return modules.run_for_some(states, packing, asking, self.shape.heads, rates, None)

    def _weights(self) -> tuple[PostNorm, Rates]:
        shape = self.shape
        rates = Rates(shape.attention_dropout, shape.dropout, shape.dropout)
        modules = PostNorm(*(getattr(self, name) for name in PostNorm._fields))
        return modules, rates if self.training else Rates()

    def _attend(self, states: Tensor, visible: Visible, content: Tensor | None) -> Tensor:
        content = states if content is None else content
        triple = (
            self._heads(self.query(states)),
            self._heads(self.key(content)),
            self._heads(self.value(content)),
        )
        answer = attend(triple, visible, self.shape.attention_dropout if self.training else 0.0)
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
    if kind not in POST_NORM:
        raise SettingsError(
            f"decoder.init: the layers of a {kind!r} model cannot be copied into a decoder",
            "--set decoder.init=random",
        )
    if not 0 <= number < backbone.depth:
        raise SettingsError(
            f"decoder.init: there is no layer {number} to copy",
            "choose one of these, or --set decoder.init=random",
            f"0 to {backbone.depth - 1}, last, random",
        )
    source = layers_of(backbone.model)[number]
    for name, module in source._asdict().items():
        getattr(layer, name).load_state_dict(module.state_dict())
