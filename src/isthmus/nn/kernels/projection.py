"""Matrix products of a layer with weights that were cast beforehand, for all layers at once.

Autocast casts every weight by a kernel of its own, and rounds its gradient before it is widened
again. Here gradients are not rounded, and one kernel joins those of queries, keys and values and
sums them for the biases.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from isthmus.nn.kernels.available import has_kernels
from isthmus.nn.numerics import product_type


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
