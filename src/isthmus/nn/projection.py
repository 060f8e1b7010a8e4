"""Queries, keys and values by one product, and their gradients put together in one pass."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from isthmus.nn.fused import has_kernels


def project(states: Tensor, parts: tuple[nn.Linear, ...], heads: int) -> tuple[Tensor, ...]:
    """The states [batch, rows, width] through several matrices of one shape, in one product.

    What each gives is [batch, heads, rows, width of a head].
    """
    if len(parts) == 1:
        [part] = parts
        projected = functional.linear(states, part.weight, part.bias)
        return (projected.view(*states.shape[:2], heads, -1).transpose(1, 2),)
    weights: list[Tensor] = [part.weight for part in parts]
    biases: list[Tensor] = [part.bias for part in parts]
    if has_kernels(states):
        found: tuple[Tensor, ...] = _Projection.apply(rounded(states), heads, *weights, *biases)  # type: ignore[no-untyped-call]
        return found
    projected = functional.linear(states, torch.cat(weights), torch.cat(biases))
    return _apart(projected.view(*states.shape[:2], -1), len(parts), heads)


def project_whole(
    states: Tensor, parts: tuple[nn.Linear, ...], heads: int
) -> tuple[Tensor, Tensor]:
    """The same of a stream [1, rows, width] as one [rows, parts, heads, width], and its bias.

    The bias is in it, but gets no gradient from it: whoever takes the whole sums that up.
    """
    weights: list[Tensor] = [part.weight for part in parts]
    biases: list[Tensor] = [part.bias for part in parts]
    weight = weights[0] if len(parts) == 1 else torch.cat(weights)
    bias = biases[0] if len(parts) == 1 else torch.cat(biases)
    projected = functional.linear(states.squeeze(0), weight, bias.detach())
    return projected.view(len(projected), len(parts), heads, -1), bias


def rounded(states: Tensor) -> Tensor:
    """As products take them."""
    device = states.device.type
    if not torch.is_autocast_enabled(device):
        return states
    return states.to(torch.get_autocast_dtype(device))


def _apart(projected: Tensor, count: int, heads: int) -> tuple[Tensor, ...]:
    # As they lie in memory, so that plain torch puts gradients together in one pass.
    split = projected.view(*projected.shape[:2], count, heads, -1).unbind(2)
    return tuple(part.transpose(1, 2) for part in split)


class _Projection(torch.autograd.Function):
    """Joined gradients come with their sum for the bias, which torch would read them again for."""

    @staticmethod
    def forward(context: Any, states: Tensor, heads: int, *given: Tensor) -> tuple[Tensor, ...]:
        count = len(given) // 2
        out, width = given[0].shape
        weight, bias = states.new_empty(count * out, width), states.new_empty(count * out)
        # Joined and rounded at once.
        torch._foreach_copy_([*weight.chunk(count), *bias.chunk(count)], list(given))
        context.save_for_backward(states, weight)
        context.types = [each.dtype for each in given]
        return _apart(functional.linear(states, weight, bias), count, heads)

    @staticmethod
    def backward(context: Any, *above: Tensor) -> Any:
        from isthmus.nn.fused_kernels import join

        states, weight = context.saved_tensors
        for_states, for_weights = None, [None] * len(above)
        joined, sums = join(above)
        if context.needs_input_grad[0]:
            for_states = (joined @ weight).view(states.shape)
        if any(context.needs_input_grad[2 : 2 + len(above)]):
            product = joined.T @ states.flatten(0, 1)
            for_weights = product.to(context.types[0]).chunk(len(above))
        for_biases = sums.to(context.types[-1]).chunk(len(above))
        return for_states, None, *for_weights, *for_biases
