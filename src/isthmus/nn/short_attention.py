"""Attention within short texts by kernels of our own (nn/attention_kernels.py), where they pay.

They take what one product made of the states as a whole, and give its gradient back as a whole:
nothing is put together afterwards, and the gradient of the product's bias is a by-product.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from isthmus.nn.fused import has_kernels
from isthmus.nn.kernels import has_triton
from isthmus.nn.packing import Asking, Masked, Packing

# Tokens up to which tiles of ours waste less than torch's kernel for texts of many lengths does,
# which is made for long ones. No kernel of torch's takes packed texts and what each row sees.
_SHORT = 256
_WIDEST = 128  # of a head, for which the registers of a program suffice
_COMMON = 64  # of a head, for which any GPU has enough shared memory
_SHARED = 120 << 10  # bytes for those wider


def attends_shortly(states: Tensor, visible: object, width: int) -> bool:
    """Whether these kernels take heads of this width for texts that are seen so."""
    short = isinstance(visible, Packing) and visible.length <= _SHORT
    fits = short or isinstance(visible, Masked)
    if not fits or width % 8 or width > _WIDEST or not has_kernels(states):
        return False
    return width <= _COMMON or has_triton(states.device.index, _SHARED)


def attend_shortly(
    projected: tuple[Tensor, ...],
    biases: tuple[Tensor, ...],
    visible: Packing | Masked,
    rate: float,
    asking: Asking | None = None,
) -> Tensor:
    """What the rows that ask are answered, [rows, heads, width].

    Args:
        projected: Queries, keys and values of a stream, [tokens, 3, heads, width]; or queries
            [rows, 1, heads, width] and the others [tokens, 2, heads, width].
        biases: Of the product that made each of them, in the same order, and in it already: here
            they get their gradients, which must not come from the product too.
        visible: What each row sees.
        rate: Of dropout.
        asking: Where not all tokens ask, those that do.

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
        from isthmus.nn import attention_kernels as kernels

        *tensors, (queries, keys), longest, causal, visible, rate = given
        projected, biases = _halves(tensors)
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
        context.told = longest, causal, kept.scale, [bias.dtype for bias in biases]
        return answers

    @staticmethod
    def backward(context: Any, *above: Tensor) -> Any:
        from isthmus.nn import attention_kernels as kernels

        *projected, answers, levels, queries, keys, seen, bits = context.saved_tensors
        longest, causal, scale, types = context.told
        texts = kernels.Texts(queries, keys, longest, causal, seen)
        kept = kernels.Kept(bits, scale)
        parts = _parts(projected)
        slopes = [
            torch.empty_like(each, memory_format=torch.contiguous_format) for each in projected
        ]
        width = parts[0].shape[2]
        sums = kernels.backward(
            above[0], *parts, answers, levels, texts, width**-0.5, kept, _parts(slopes)
        )
        split = torch.split(sums, [each.shape[1] for each in projected])
        for_biases = [part.flatten().to(kind) for part, kind in zip(split, types, strict=True)]
        return *slopes, *for_biases, None, None, None, None, None


def _halves(tensors: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    middle = len(tensors) // 2
    return tensors[:middle], tensors[middle:]


def _parts(projected: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    queries, keys, values = (part for each in projected for part in each.unbind(1))
    return queries, keys, values
