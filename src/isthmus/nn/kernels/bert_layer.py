"""Layers of BERT's kind, computed from the modules that hold their weights in few passes.

transformers launches a kernel for every term of the formula. Here one product gives queries, keys
and values, and norm_gelu.py computes what lies between the products.

Autocast casts every weight by a kernel of its own, and rounds its gradient before it is widened
again. Here gradients are not rounded, one kernel joins those of queries, keys and values and sums
them for the biases, and weights are cast for all layers at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as functional
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from isthmus.nn.architectures import (
    ARCHITECTURES,
    POST_NORM,
    LayerModules,
    LayerShape,
    head_modules,
    layers_of,
)
from isthmus.nn.attention import Triple, packed_attention
from isthmus.nn.kernels.available import has_kernels
from isthmus.nn.kernels.norm_gelu import bias_gelu, drop_add_norm
from isthmus.nn.kernels.short_attention import attend_shortly, attends_shortly
from isthmus.nn.numerics import product_type, rounded
from isthmus.nn.packing import Asking, Full, Masked, Packing, Visible, take_rows


class Rates(NamedTuple):
    """The dropout rates of attention weights, of attention output and of feed-forward output."""

    weights: float = 0.0
    attended: float = 0.0
    fed: float = 0.0


class Matrices(NamedTuple):
    """The weights of a layer in the type of its products; empty where kernels are off."""

    projection: Joined | None = None  # of queries, keys and values
    output: Tensor | None = None
    expand: Tensor | None = None
    contract: Tensor | None = None


class PostNorm(LayerModules):
    """A layer of BERT's kind, computed with the weights in these modules."""

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
        """The states [batch, queries, width] after the layer, twice, as `drop_add_norm` gives them.

        Args:
            states: What is projected.
            kept: The states once more, for the residual.
            visible: What a row sees of the content.
            heads: The number of attention heads.
            rates: The rates of dropout; 0 outside of training.
            content: The input of keys and values [batch, keys, width]; by default, the states.
            dtype: The type of the result.
            asking: The tokens of a packed batch that the states belong to; by default, all.
            matrices: The weights, if they were cast with those of other layers.

        """
        if kept is states:
            # Cast once for the product and the residual, which has the same type.
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

        Keys and values come from all tokens of the batch; queries, residuals and the feed-forward
        network are computed for these tokens alone.
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
        """The output projection of attention [batch, queries, width], without its bias."""
        parts, joint = (self.query, self.key, self.value), matrices.projection
        given: list[tuple[Tensor, tuple[nn.Linear, ...], Joined | None]] = [(states, parts, joint)]
        if content is not None:
            both = zip((states, content), (parts[:1], parts[1:]), _cut(joint), strict=True)
            given = list(both)
        width = self.query.out_features // heads
        short = isinstance(visible, Packing | Masked) and attends_shortly(states, visible, width)
        if short and joint is not None:
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


def _cut(joint: Joined | None) -> tuple[Joined | None, Joined | None]:
    """The part for queries, and the part for keys and values."""
    if joint is None:
        return None, None
    (query, *_), (bias, *_) = (each.chunk(3) for each in joint)
    others = Joined(joint.weight[len(query) :], joint.bias[len(bias) :])
    return Joined(query, bias), others


@torch.no_grad()
def round_matrices(layers: Sequence[PostNorm], states: Tensor) -> list[Matrices]:
    """Casts all layers' weights in one launch; empty where kernels are off."""
    dtype = kernel_type(states)
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
    """All layers of a model of transformers."""

    layers: list[PostNorm]
    heads: int
    rates: Rates
    first: nn.Module  # as transformers made it

    @property
    def checkpointed(self) -> bool:
        """Whether gradient checkpointing is on, which only transformers' own layers do."""
        return bool(getattr(self.first, "gradient_checkpointing", False))

    @classmethod
    def of(cls, model: Any) -> PostNormStack | None:
        """The layers of a model; None where they compute something else."""
        config = model.config
        if config.model_type not in POST_NORM:
            return None
        shape = LayerShape.of(config)
        if shape.activation != "gelu":
            return None
        known = ARCHITECTURES[config.model_type]
        attended = shape.dropout if known.drops_attended else 0.0
        rates = Rates(shape.attention_dropout, attended, shape.dropout)
        layers = [PostNorm(*modules) for modules in layers_of(model)]
        read = [model.base_model.embeddings.LayerNorm, *(part for each in layers for part in each)]
        if head_modules(model) is not None:
            read += map(model.get_submodule, known.transform or ())
        if any(type(part) not in (nn.Linear, nn.LayerNorm) for part in read):
            return None  # an adapter, say, whose weight is not all of it
        first = model.base_model.get_submodule(f"{known.layers}.0")
        return cls(layers, shape.heads, rates, first)

    def run(
        self,
        embedded: Tensor,
        visible: Visible,
        training: bool,
        layer: int | None = None,
        some: tuple[Packing, Asking] | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """The states after all layers, and those after `layer` of them, if given.

        With `some` tokens of a batch, the last states are theirs alone, [1, places, width].
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
    """The type of the last states; None for the type of the states before the last layer.

    Under autocast, torch's LayerNorm gives float32, which heads and losses expect.
    """
    return torch.float32 if torch.is_autocast_enabled(states.device.type) else None


def attend(triple: Triple, visible: Visible, rate: float, asking: Asking | None = None) -> Tensor:
    """Attention output of the query rows, [batch, heads, queries, width]."""
    if isinstance(visible, Packing):
        return packed_attention(triple, visible, rate, asking=asking)
    if isinstance(visible, Masked):
        packing, seen = visible
        queries, keys, values = (
            packing.unpack(part.transpose(1, 2)).transpose(1, 2) for part in triple
        )
        answers = attend((queries, keys, values), seen[:, None], rate)
        return packing.pack(answers.transpose(1, 2)).transpose(1, 2)
    if isinstance(visible, Full):
        return scaled_dot_product_attention(*triple, dropout_p=rate, is_causal=visible.causal)
    return scaled_dot_product_attention(*triple, attn_mask=visible, dropout_p=rate)


class Joined(NamedTuple):
    """Several matrices of one shape stacked, and their biases, in the type of products."""

    weight: Tensor
    bias: Tensor


def multiply(states: Tensor, part: nn.Linear, matrix: Tensor | None) -> Tensor:
    """States · weightᵀ, without the bias; `matrix`: the weight in the type of products, if cast."""
    if matrix is None:
        return functional.linear(states, part.weight)
    product: Tensor = _Product.apply(states, matrix, None, part.weight)  # type: ignore[no-untyped-call]
    return product


def project(
    states: Tensor, parts: tuple[nn.Linear, ...], heads: int, joined: Joined | None = None
) -> tuple[Tensor, ...]:
    """The states [batch, rows, width] times several matrices of one shape, in one product.

    Each result is [batch, heads, rows, width of a head].
    """
    if len(parts) == 1:
        [part] = parts
        projected = functional.linear(states, part.weight, part.bias)
        return (projected.view(*states.shape[:2], heads, -1).transpose(1, 2),)
    weights, biases = _parameters(parts)
    if joined is not None:
        found: tuple[Tensor, ...] = _Projection.apply(states, heads, *joined, *weights, *biases)  # type: ignore[no-untyped-call]
        return found
    projected = functional.linear(states, torch.cat(weights), torch.cat(biases))
    return _apart(projected.view(*states.shape[:2], -1), len(parts), heads)


def project_whole(
    states: Tensor, parts: tuple[nn.Linear, ...], heads: int, joined: Joined
) -> tuple[Tensor, Tensor]:
    """The states [1, rows, width] times several matrices, as one [rows, parts, heads, width].

    With it comes the joined bias, which is added already but gets no gradient here: attention,
    which takes the whole, computes it.
    """
    weights, biases = _parameters(parts)
    given = states.squeeze(0), *joined, *weights
    projected: Tensor = _Product.apply(*given)  # type: ignore[no-untyped-call]
    return projected.view(len(projected), len(parts), heads, -1), torch.cat(biases)


def kernel_type(states: Tensor) -> torch.dtype | None:
    """The type of products where kernels run on these states; None where they do not."""
    return product_type(states) if has_kernels(states) else None


def _parameters(parts: tuple[nn.Linear, ...]) -> tuple[list[Tensor], list[Tensor]]:
    return [part.weight for part in parts], [part.bias for part in parts]


def _apart(projected: Tensor, count: int, heads: int) -> tuple[Tensor, ...]:
    # Views in memory order: plain torch joins their gradients in one pass.
    split = projected.view(*projected.shape[:2], count, heads, -1).unbind(2)
    return tuple(part.transpose(1, 2) for part in split)


class _Product(torch.autograd.Function):
    """A product with a cast, joined matrix; the gradients go to the weights it was made of."""

    @staticmethod
    def forward(
        context: Any, states: Tensor, matrix: Tensor, bias: Tensor | None, *weights: Tensor
    ) -> Tensor:
        context.save_for_backward(states, matrix)
        context.types = [weight.dtype for weight in weights]
        return functional.linear(states, matrix, bias)

    @staticmethod
    def backward(context: Any, *above: Tensor) -> Any:
        states, matrix = context.saved_tensors
        gradient = above[0].reshape(-1, len(matrix))
        wanted = context.needs_input_grad
        for_states = (gradient @ matrix).view(states.shape) if wanted[0] else None
        for_weights = _for_weights(gradient, states, context.types, any(wanted[3:]))
        return for_states, None, None, *for_weights


class _Projection(torch.autograd.Function):
    """Several projections, whose gradients one kernel joins and sums for the biases."""

    @staticmethod
    def forward(
        context: Any, states: Tensor, heads: int, weight: Tensor, bias: Tensor, *given: Tensor
    ) -> tuple[Tensor, ...]:
        context.save_for_backward(states, weight)
        context.types = [each.dtype for each in given]
        return _apart(functional.linear(states, weight, bias), len(given) // 2, heads)

    @staticmethod
    def backward(context: Any, *above: Tensor) -> Any:
        from isthmus.nn.kernels.norm_gelu_triton import join

        states, weight = context.saved_tensors
        joined, sums = join(above)
        count, wanted = len(above), context.needs_input_grad
        for_states = (joined @ weight).view(states.shape) if wanted[0] else None
        for_weights = _for_weights(
            joined, states, context.types[:count], any(wanted[4 : 4 + count])
        )
        for_biases = sums.to(context.types[-1]).chunk(count)
        return for_states, None, None, None, *for_weights, *for_biases


def _for_weights(
    gradient: Tensor, states: Tensor, types: list[torch.dtype], wanted: bool
) -> list[Tensor | None]:
    """gradientᵀ · states of each part; on a GPU not rounded before it is float32."""
    if not wanted:
        return [None] * len(types)
    rows = states.reshape(-1, states.shape[-1])
    if gradient.device.type == "cuda" and types[0] == torch.float32 != gradient.dtype:
        product = torch.mm(gradient.T, rows, out_dtype=torch.float32)
    else:
        product = (gradient.T @ rows).to(types[0])
    return list(product.chunk(len(types)))
