"""Between a layer's matrix products: bias, dropout, residual and LayerNorm; bias and GELU.

By kernels on a GPU (norm_gelu_triton.py), in plain torch elsewhere. The bias is left out of the
product and added here: a kernel computes its gradient along the way.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from isthmus.nn.kernels.available import has_kernels
from isthmus.nn.numerics import drop

_WIDEST = 1 << 11  # of a row that the registers of one program hold


def drop_add_norm(
    states: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    norm: nn.LayerNorm,
    rate: float,
    dtype: torch.dtype | None = None,
    after: bool = False,
) -> tuple[Tensor, Tensor]:
    """norm(residual + dropout(states + bias)), twice.

    Two results for two uses: their gradients come back apart, and the kernel adds them, which would
    otherwise cost a pass over both. `dtype` is that of the result; by default, the states'. With
    `after`, dropout comes after the norm.
    """
    if has_kernels(states) and states.shape[-1] <= _WIDEST:
        kind = states.dtype if dtype is None else dtype
        train = torch.is_grad_enabled()
        scale, shift = norm.weight, norm.bias
        given = states, bias, residual, scale, shift, norm.eps, rate, kind, train, after
        pair: tuple[Tensor, Tensor] = _DropAddNorm.apply(*given)  # type: ignore[no-untyped-call]
        return pair
    summed = states if bias is None else states + bias.to(states.dtype)
    summed = summed if after else drop(summed, rate)
    summed = summed if residual is None else residual + summed
    normed = _normed(summed, norm)
    normed = drop(normed, rate) if after else normed
    normed = normed if dtype is None else normed.to(dtype)
    return normed, normed


def bias_gelu(states: Tensor, bias: Tensor) -> Tensor:
    """GELU(states + bias), by the error function."""
    if has_kernels(states):
        active: Tensor = _BiasGelu.apply(states, bias)  # type: ignore[no-untyped-call]
        return active
    return functional.gelu(states + bias.to(states.dtype))


def _normed(summed: Tensor, norm: nn.LayerNorm) -> Tensor:
    """norm(summed); in float32 if the types differ, which only torch's CPU kernel allows."""
    if torch.is_autocast_enabled(summed.device.type) or summed.dtype == norm.weight.dtype:
        normed: Tensor = norm(summed)
        return normed
    weight, bias = norm.weight.float(), norm.bias.float()
    exact = functional.layer_norm(summed.float(), norm.normalized_shape, weight, bias, norm.eps)
    return exact.to(summed.dtype)


class _DropAddNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any,
        states: Tensor,
        bias: Tensor | None,
        residual: Tensor | None,
        weight: Tensor,
        offset: Tensor,
        epsilon: float,
        rate: float,
        dtype: torch.dtype,
        train: bool,
        after: bool,
    ) -> tuple[Tensor, Tensor]:
        from isthmus.nn.kernels.norm_gelu_triton import Draw, norm_forward

        rows = _rows(states)
        draw = Draw.next(rate, states.device)
        beside = None if residual is None else _rows(residual)
        normed, summed, moments = norm_forward(
            rows, bias, beside, weight, offset, epsilon, draw, dtype, train, after
        )
        context.save_for_backward(summed, moments, weight)
        context.draw, context.after = draw, after
        context.types = [None if each is None else each.dtype for each in (residual, bias)]
        context.set_materialize_grads(False)  # a missing one is skipped
        normed = normed.view(states.shape)
        return normed, normed.detach()

    @staticmethod
    def backward(context: Any, *above: Tensor | None) -> Any:
        from isthmus.nn.kernels.norm_gelu_triton import norm_backward

        summed, moments, weight = context.saved_tensors
        given = [each for each in above if each is not None]
        if not given:
            return (None,) * 10
        first, *others = (_rows(each) for each in given)
        beside = others[0] if others else None
        residual_type, bias_type = context.types
        kept = summed, moments, weight, context.draw
        for_states, for_residual, (for_weight, for_offset, for_bias) = norm_backward(
            first, beside, *kept, residual_type or summed.dtype, context.after
        )
        shape = given[0].shape
        return (
            for_states.view(shape),
            None if bias_type is None else for_bias.to(bias_type),
            None if residual_type is None else for_residual.view(shape),
            for_weight.to(weight.dtype),
            for_offset.to(weight.dtype),
            *(None,) * 5,
        )


class _BiasGelu(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, states: Tensor, bias: Tensor) -> Tensor:
        from isthmus.nn.kernels.norm_gelu_triton import gelu_forward

        rows = _rows(states)
        context.save_for_backward(rows, bias)
        return gelu_forward(rows, bias).view(states.shape)

    @staticmethod
    def backward(context: Any, *above: Tensor) -> Any:
        from isthmus.nn.kernels.norm_gelu_triton import gelu_backward

        states, bias = context.saved_tensors
        for_states, for_bias = gelu_backward(_rows(above[0]), states, bias)
        return for_states.view(above[0].shape), for_bias.to(bias.dtype)


def _rows(states: Tensor) -> Tensor:
    return states.reshape(-1, states.shape[-1]).contiguous()
