"""Products of states with weights, of which a GPU's layers have the rounded ones at hand.

Autocast rounds every weight by a kernel of its own, and rounds its gradient before it is widened
again; the gradients of queries, keys and values are put together, and then summed for the bias.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from isthmus.nn.fused import has_kernels


class Joined(NamedTuple):
    """Several matrices of one shape below each other, and their biases, as products take them."""

    weight: Tensor
    bias: Tensor


def multiply(states: Tensor, part: nn.Linear, matrix: Tensor | None) -> Tensor:
    """The states through a matrix, without its bias; `matrix`: the same, rounded, where it is."""
    if matrix is None:
        return functional.linear(states, part.weight)
    product: Tensor = _Product.apply(states, matrix, None, part.weight)  # type: ignore[no-untyped-call]
    return product


def project(
    states: Tensor, parts: tuple[nn.Linear, ...], heads: int, joined: Joined | None = None
) -> tuple[Tensor, ...]:
    """The states [batch, rows, width] through several matrices of one shape, in one product.

    What each gives is [batch, heads, rows, width of a head].
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
    """The same of a stream [1, rows, width] as one [rows, parts, heads, width], and its bias.

    The bias is in it, but gets no gradient from it: whoever takes the whole sums that up.
    """
    weights, biases = _parameters(parts)
    given = states.squeeze(0), *joined, *weights
    projected: Tensor = _Product.apply(*given)  # type: ignore[no-untyped-call]
    return projected.view(len(projected), len(parts), heads, -1), torch.cat(biases)


def rounded(states: Tensor) -> Tensor:
    """As products take them."""
    device = states.device.type
    if not torch.is_autocast_enabled(device):
        return states
    return states.to(torch.get_autocast_dtype(device))


def rounded_type(states: Tensor) -> torch.dtype | None:
    """That of products of kernels of our own; None where those do not run."""
    if not has_kernels(states):
        return None
    return torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else states.dtype


def _parameters(parts: tuple[nn.Linear, ...]) -> tuple[list[Tensor], list[Tensor]]:
    return [part.weight for part in parts], [part.bias for part in parts]


def _apart(projected: Tensor, count: int, heads: int) -> tuple[Tensor, ...]:
    # As they lie in memory, so that plain torch puts gradients together in one pass.
    split = projected.view(*projected.shape[:2], count, heads, -1).unbind(2)
    return tuple(part.transpose(1, 2) for part in split)


class _Product(torch.autograd.Function):
    """Of a matrix that was rounded and joined before; gradients are those of what it is made of."""

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
        slopes = above[0].reshape(-1, len(matrix))
        wanted = context.needs_input_grad
        for_states = (slopes @ matrix).view(states.shape) if wanted[0] else None
        for_weights = _for_weights(slopes, states, context.types, any(wanted[3:]))
        return for_states, None, None, *for_weights


class _Projection(torch.autograd.Function):
    """Joined gradients come with their sum for the bias, which torch would read them again for."""

    @staticmethod
    def forward(
        context: Any, states: Tensor, heads: int, weight: Tensor, bias: Tensor, *given: Tensor
    ) -> tuple[Tensor, ...]:
        context.save_for_backward(states, weight)
        context.types = [each.dtype for each in given]
        return _apart(functional.linear(states, weight, bias), len(given) // 2, heads)

    @staticmethod
    def backward(context: Any, *above: Tensor) -> Any:
        from isthmus.nn.fused_kernels import join

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
    slopes: Tensor, states: Tensor, types: list[torch.dtype], wanted: bool
) -> list[Tensor | None]:
    """slopesᵀ · states of each part, not rounded in between where a GPU can do without."""
    if not wanted:
        return [None] * len(types)
    rows = states.reshape(-1, states.shape[-1])
    if slopes.device.type == "cuda" and types[0] == torch.float32 != slopes.dtype:
        product = torch.mm(slopes.T, rows, out_dtype=torch.float32)
    else:
        product = (slopes.T @ rows).to(types[0])
    return list(product.chunk(len(types)))
