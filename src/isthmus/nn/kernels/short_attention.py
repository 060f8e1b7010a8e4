"""Attention within short texts by kernels (short_attention_triton.py), where they pay.

They read queries, keys and values from one tensor, and write the gradient of it as one: nothing is
concatenated afterwards, and the gradient of the bias is computed along the way.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from isthmus.nn.kernels.available import has_kernels, has_triton
from isthmus.nn.packing import Asking, Masked, Packing

# Tokens up to which our tiles waste less than those of torch's variable-length kernel, made for
# long texts. No kernel of torch takes packed texts with a mask for each row.
_SHORT = 256
_WIDEST = 128  # of a head, for which the registers of a program suffice
_COMMON = 64  # of a head, for which any GPU has enough shared memory
_SHARED = 120 << 10  # bytes for those wider


def attends_shortly(states: Tensor, visible: object, width: int) -> bool:
    """Whether these kernels take heads of this width and this visibility."""
    short = isinstance(visible, Packing) and visible.length <= _SHORT
    fits = short or isinstance(visible, Masked)
    if not fits or width % 8 or width > _WIDEST or not has_kernels(states):
        return False
    return width <= _COMMON or has_triton(states.device, _SHARED)


def attend_shortly(
    projected: tuple[Tensor, ...],
    biases: tuple[Tensor, ...],
    visible: Packing | Masked,
    rate: float,
    asking: Asking | None = None,
) -> Tensor:
    """Attention output of the query rows, [rows, heads, width].

    Args:
        projected: Queries, keys and values of a stream, [tokens, 3, heads, width]; or queries
            [rows, 1, heads, width] and the others [tokens, 2, heads, width].
        biases: Those of the products that made each of them, already added there: they get their
            gradients here, so the product must not give them any.
        visible: What each row sees.
        rate: The rate of dropout.
        asking: The tokens that the queries belong to; by default, all.

    """
    packing, seen = visible if isinstance(visible, Masked) else (visible, None)
    offsets = (packing.offsets, packing.offsets)
    if asking is not None:
        offsets = asking.texts(packing)
    answers: Tensor = _Attention.apply(  # type: ignore[no-untyped-call]
        *projected, *biases, offsets, packing.length, packing.causal, seen, rate
    )
    return answers


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, *given: Any) -> Tensor:
        from isthmus.nn.kernels import short_attention_triton as kernels

        *tensors, (queries, keys), longest, causal, visible, rate = given
        half = len(tensors) // 2
        projected, biases = tensors[:half], tensors[half:]
        seen = None if visible is None else kernels.pack_bits(visible, len(queries) - 1)
        texts = kernels.Texts(queries, keys, longest, causal, seen)
        parts = _parts(projected)
        rows, heads, width = parts[0].shape
        seed = torch.randint(2**62, (1,), device=queries.device) if rate else None
        kept = kernels.Kept()
        if seed is not None:
            kept = kernels.draw_kept(seed, rate, rows, heads, longest)
        answers, levels = kernels.forward(*parts, texts, width**-0.5, kept)
        context.save_for_backward(*projected, answers, levels, queries, keys, seen, kept.bits)
        context.given = longest, causal, kept.scale, [bias.dtype for bias in biases]
        return answers

    @staticmethod
    def backward(context: Any, *above: Tensor) -> Any:
        from isthmus.nn.kernels import short_attention_triton as kernels

        *projected, answers, levels, queries, keys, seen, bits = context.saved_tensors
        longest, causal, scale, types = context.given
        texts = kernels.Texts(queries, keys, longest, causal, seen)
        kept = kernels.Kept(bits, scale)
        parts = _parts(projected)
        gradients = [
            torch.empty_like(each, memory_format=torch.contiguous_format) for each in projected
        ]
        width = parts[0].shape[2]
        sums = kernels.backward(
            above[0], *parts, answers, levels, texts, width**-0.5, kept, _parts(gradients)
        )
        split = torch.split(sums, [each.shape[1] for each in projected])
        for_biases = [part.flatten().to(kind) for part, kind in zip(split, types, strict=True)]
        return *gradients, *for_biases, None, None, None, None, None


def _parts(projected: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    queries, keys, values = (part for each in projected for part in each.unbind(1))
    return queries, keys, values
