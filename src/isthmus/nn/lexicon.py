"""What a text says about the vocabulary: for every term, the largest logit of its positions."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor

from isthmus.nn.backbone import Backbone
from isthmus.nn.kernels import has_triton
from isthmus.nn.prediction import Prediction, aligned, rows_at_once

# Three stages of two tiles, and some for the maxima: more than a chip for screens has.
_SHARED = 1 << 17
_SHORT = 1 << 15


def largest_logits(backbone: Backbone, states: Tensor, inside: Tensor) -> Tensor:
    """max_i head(H_i) over the positions inside, [rows, vocabulary] in float32; 0 where none is."""
    return largest_of(backbone.predict(states), inside)


def largest_of(prediction: Prediction, inside: Tensor) -> Tensor:
    """The same of a prediction for tokens [rows, length, width].

    [tokens, vocabulary] logits are never held at once, and of each maximum only the place is kept
    for the backward pass: training holds no more logits than encoding.
    """
    features, matrix, bias = prediction
    given = [tensor for tensor in prediction if tensor is not None]
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in given):
        found: Tensor = _Largest.apply(features, matrix, bias, inside, prediction.dtype)  # type: ignore[no-untyped-call]
    else:
        rounded = features.to(prediction.dtype), matrix.to(prediction.dtype)
        found, _ = _find(*rounded, bias, inside, with_places=False)
    return found.float()


class _Largest(torch.autograd.Function):
    """Only what was largest has a slope: of as many logits as there are tokens, one per row.

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
        slopes = torch.where(places >= 0, above[0], 0)
        gradients: list[Tensor | None] = [None, None, None]
        if context.needs_input_grad[0]:
            gradients[0] = _for_features(features, matrix, places, slopes)
        if context.needs_input_grad[1]:
            gradients[1] = _for_matrix(features, places, slopes)
        if context.needs_input_grad[2]:
            gradients[2] = slopes.sum(0)
        rounded = (
            None if gradient is None else gradient.to(dtype)
            for gradient, dtype in zip(gradients, context.types, strict=True)
        )
        return (*rounded, None, None)


def _find(
    features: Tensor, matrix: Tensor, bias: Tensor | None, inside: Tensor, with_places: bool
) -> tuple[Tensor, Tensor | None]:
    """The largest logits, at least in float32, and the places of them among all positions.

    -1 in a row without a position inside.
    """
    if _has_kernels(features, matrix):
        from isthmus.nn.lexicon_kernels import find_largest

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


def _for_features(features: Tensor, matrix: Tensor, places: Tensor, slopes: Tensor) -> Tensor:
    positions = features.shape[0] * features.shape[1]
    terms, weights, starts = _by_place(places, slopes, positions)
    if _has_kernels(features, matrix):
        from isthmus.nn.lexicon_kernels import features_gradient

        gradient = features_gradient(terms, weights, starts, matrix)
    else:
        gradient = functional.embedding_bag(
            terms,
            matrix.to(weights.dtype),
            starts,
            mode="sum",
            per_sample_weights=weights,
            include_last_offset=True,
        )
    return gradient.view_as(features)


def _by_place(places: Tensor, slopes: Tensor, positions: int) -> tuple[Tensor, Tensor, Tensor]:
    """Terms and slopes in the order of their places, and where those of each place start.

    Those without a slope come last, behind all places.
    """
    # A GPU sorts by some bits at a time: numbers of 16 bits, where they are enough, in half of it.
    dtype, first = (torch.int16, -_SHORT) if positions < 2 * _SHORT else (places.dtype, 0)
    keys = torch.where(slopes != 0, places, positions) + first
    keys, order = keys.flatten().to(dtype).sort(stable=True)
    every = torch.arange(first, first + positions + 1, dtype=dtype, device=keys.device)
    starts = torch.searchsorted(keys, every, out_int32=True)
    return (order % places.shape[1]).int(), slopes.flatten()[order], starts


def _for_matrix(features: Tensor, places: Tensor, slopes: Tensor) -> Tensor:
    flat = features.flatten(0, 1)
    if _has_kernels(flat, flat):
        from isthmus.nn.lexicon_kernels import matrix_gradient

        return matrix_gradient(places, slopes, flat)
    rows, terms = places.shape
    return functional.embedding_bag(
        places.clamp(min=0).T.flatten(),
        flat.to(slopes.dtype),
        torch.arange(terms, dtype=torch.int32, device=places.device) * rows,
        mode="sum",
        per_sample_weights=slopes.T.flatten(),
    )


def _has_kernels(features: Tensor, matrix: Tensor) -> bool:
    return (
        features.device.type == "cuda"
        # In float32, torch's own products are faster than any that Triton makes.
        and features.dtype in (torch.bfloat16, torch.float16)
        and matrix.numel() < 1 << 31
        and has_triton(features.device.index, _SHARED)
    )
