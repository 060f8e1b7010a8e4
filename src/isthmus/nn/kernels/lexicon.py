"""The largest logit of each text and term: what lexicon bottlenecks and sparse encoders weigh.

On a GPU in 16 bits by kernels that write no logit to memory. docs/decisions/lexicon-kernels.md.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor

from isthmus.nn.kernels.available import has_half_kernels
from isthmus.nn.losses import aligned, rows_at_once

# Bytes: three stages of two tiles, and some for the maxima; more than consumer GPUs have.
_SHARED = 1 << 17
_SHORT = 1 << 15


def largest_logits(
    features: Tensor, matrix: Tensor, bias: Tensor | None, inside: Tensor, dtype: torch.dtype
) -> Tensor:
    """The largest logit of every term [rows, terms] over the positions inside [rows, length].

    For features [rows, length, width]; products are computed in `dtype`. A row without a position
    inside gets 0. [tokens, vocabulary] logits are never held at once, and the backward pass needs
    only the place of each maximum: training holds no more logits than encoding.
    """
    given = [tensor for tensor in (features, matrix, bias) if tensor is not None]
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in given):
        found: Tensor = _Largest.apply(features, matrix, bias, inside, dtype)  # type: ignore[no-untyped-call]
        return found
    return _find(features.to(dtype), matrix.to(dtype), bias, inside, with_places=False)[0]


class _Largest(torch.autograd.Function):
    """Only the largest logit of a row and term has a gradient.

    So the gradients are sums of chosen rows of the other factor, and no matrix product.
    """

    @staticmethod
    def forward(
        context: Any,
        features: Tensor,
        matrix: Tensor,
        bias: Tensor | None,
        inside: Tensor,
        dtype: torch.dtype,
    ) -> Tensor:
        rounded = features.to(dtype), matrix.to(dtype)
        values, places = _find(*rounded, bias, inside, with_places=True)
        assert places is not None
        context.save_for_backward(*rounded, places)
        context.types = [
            None if tensor is None else tensor.dtype for tensor in (features, matrix, bias)
        ]
        return values

    @staticmethod
    def backward(context: Any, *above: Tensor) -> Any:
        features, matrix, places = context.saved_tensors
        gradient = torch.where(places >= 0, above[0], 0)
        gradients: list[Tensor | None] = [None, None, None]
        if context.needs_input_grad[0]:
            gradients[0] = _for_features(features, matrix, places, gradient)
        if context.needs_input_grad[1]:
            gradients[1] = _for_matrix(features, places, gradient)
        if context.needs_input_grad[2]:
            gradients[2] = gradient.sum(0)
        rounded = (
            None if each is None else each.to(dtype)
            for each, dtype in zip(gradients, context.types, strict=True)
        )
        return (*rounded, None, None)


def _find(
    features: Tensor, matrix: Tensor, bias: Tensor | None, inside: Tensor, with_places: bool
) -> tuple[Tensor, Tensor | None]:
    """The largest logits, at least in float32, and their places among all positions.

    The place is -1 in a row without a position inside.
    """
    if _has_kernels(features, matrix):
        from isthmus.nn.kernels.lexicon_triton import find_largest

        return find_largest(features, matrix, bias, inside, with_places)
    rows, length = inside.shape
    number = torch.arange(rows, device=inside.device)
    # Positions outside repeat one inside, which changes no maximum: masking width numbers is
    # cheaper than masking as many logits as there are terms.
    first = inside.int().argmax(1)
    features = torch.where(inside[:, :, None], features, features[number, first][:, None])
    wide, offsets = aligned(matrix, None if bias is None else bias.to(matrix.dtype))
    step = rows_at_once(length * len(wide), features.device)
    # One row is never cut: a trace of the model (encoders/int8.py) would keep the size of a piece.
    parts = torch.split(features, step) if rows > 1 else (features,)
    values, places = [], []
    for part in parts:
        logits = functional.linear(part, wide, offsets)[..., : len(matrix)]
        if with_places:
            largest, place = logits.max(1)
            places.append(place.int())
        else:
            largest = logits.amax(1)  # several times faster on a CPU
        values.append(largest)
    known = inside.any(1, keepdim=True)
    exact = torch.promote_types(features.dtype, torch.float32)
    found = torch.where(known, torch.cat(values).to(exact), 0)
    if not with_places:
        return found, None
    place = torch.cat(places)
    place = torch.where(inside.gather(1, place.long()), place, first[:, None].int())
    return found, torch.where(known, place + number[:, None].int() * length, -1)


def _for_features(features: Tensor, matrix: Tensor, places: Tensor, gradient: Tensor) -> Tensor:
    positions = features.shape[0] * features.shape[1]
    terms, weights, starts = _by_place(places, gradient, positions)
    if _has_kernels(features, matrix):
        from isthmus.nn.kernels.lexicon_triton import features_gradient

        found = features_gradient(terms, weights, starts, matrix)
    else:
        found = functional.embedding_bag(
            terms,
            matrix.to(weights.dtype),
            starts,
            mode="sum",
            per_sample_weights=weights,
            include_last_offset=True,
        )
    return found.view_as(features)


def _by_place(places: Tensor, gradient: Tensor, positions: int) -> tuple[Tensor, Tensor, Tensor]:
    """Terms and gradients in the order of their places, and where those of each place start.

    Terms without a gradient come last, after all places.
    """
    # A GPU sorts by some bits at a time: numbers of 16 bits, where they are enough, in half of it.
    dtype, first = (torch.int16, -_SHORT) if positions < 2 * _SHORT else (places.dtype, 0)
    keys = torch.where(gradient != 0, places, positions) + first
    keys, order = keys.flatten().to(dtype).sort(stable=True)
    every = torch.arange(first, first + positions + 1, dtype=dtype, device=keys.device)
    starts = torch.searchsorted(keys, every, out_int32=True)
    return (order % places.shape[1]).int(), gradient.flatten()[order], starts


def _for_matrix(features: Tensor, places: Tensor, gradient: Tensor) -> Tensor:
    flat = features.flatten(0, 1)
    if _has_kernels(flat, flat):
        from isthmus.nn.kernels.lexicon_triton import matrix_gradient

        return matrix_gradient(places, gradient, flat)
    rows, terms = places.shape
    return functional.embedding_bag(
        places.clamp(min=0).T.flatten(),
        flat.to(gradient.dtype),
        torch.arange(terms, dtype=torch.int32, device=places.device) * rows,
        mode="sum",
        per_sample_weights=gradient.T.flatten(),
    )


def _has_kernels(features: Tensor, matrix: Tensor) -> bool:
    # In float32, torch's own products are faster than any that Triton makes.
    return matrix.numel() < 1 << 31 and has_half_kernels(features, _SHARED)
