"""Attention for transformers' models, of padded batches and of packed ones.

Two kinds, `eager` in plain products (quicker to train with on a CPU) and `sdpa` through torch's
fused kernels, are registered with transformers under our own names. Both compute what the kind of
the same name computes there, and take a `packing` besides: then queries, keys and values are one
stream of the tokens of many texts, and each text attends to itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from isthmus.nn.architectures import ARCHITECTURES
from isthmus.nn.numerics import drop
from isthmus.nn.packing import Asking, Packing, visible_within

Attention = Literal["sdpa", "eager"]
_NAMES: dict[Attention, str] = {"eager": "isthmus_plain", "sdpa": "isthmus_fused"}
# Tokens per text, on average, from which a CPU is quicker with one text after the other: what it
# works on stays in its caches, and nothing is computed of padding.
LONG = 64
Triple = tuple[Tensor, Tensor, Tensor]  # queries, keys, values [texts, heads, length, width]
# From a triple, what each row sees, a dropout rate and a scale, to attention output.
Attend = Callable[[Triple, Tensor | None, float, float | None], Tensor]


def attention_name(kind: Attention) -> str:
    """The name by which transformers finds this kind."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import eager_mask, sdpa_mask

    AttentionInterface.register(_NAMES["eager"], _plain)
    AttentionMaskInterface.register(_NAMES["eager"], eager_mask)
    AttentionInterface.register(_NAMES["sdpa"], _fused)
    AttentionMaskInterface.register(_NAMES["sdpa"], sdpa_mask)
    return _NAMES[kind]


def use_packable_attention(model: Any) -> bool:
    """Sets up a model of transformers for packed texts; returns whether it can take them."""
    known = ARCHITECTURES.get(model.config.model_type)
    if known is None or not known.packs:
        return False
    kind = model.config._attn_implementation
    if kind in _NAMES:
        model.set_attn_implementation(attention_name(kind))
    return model.config._attn_implementation in _NAMES.values()


def packed_attention(
    stream: Triple,
    packing: Packing,
    dropout: float = 0.0,
    scale: float | None = None,
    reach: int | None = None,
    asking: Asking | None = None,
) -> Tensor:
    """Attention output of a stream in which each text attends to itself, [1, heads, tokens, width].

    With a `reach`, a token sees no further than so many others to either side. With `asking`, the
    queries are those of some tokens alone.
    """
    if asking is not None:
        return _of_some(stream, packing, dropout, asking)
    return _within_texts(_sdpa, stream, packing, dropout, scale, reach)


def _of_some(stream: Triple, packing: Packing, dropout: float, asking: Asking) -> Tensor:
    assert not packing.causal
    if has_kernel(stream[0]):
        return _variable_length(stream, packing, dropout, None, None, asking)
    ours, theirs = asking.texts(packing)
    sizes = [offsets.diff().tolist() for offsets in (ours, theirs, theirs)]
    parts = [torch.split(part, size, 2) for part, size in zip(stream, sizes, strict=True)]
    texts = [text for text in zip(*parts, strict=True) if text[0].shape[2]]
    return torch.cat([_sdpa(text, None, dropout, None) for text in texts], 2)


def _within_texts(
    attend: Attend,
    stream: Triple,
    packing: Packing,
    dropout: float,
    scale: float | None,
    reach: int | None,
) -> Tensor:
    if has_kernel(stream[0]):
        return _variable_length(stream, packing, dropout, scale, reach)
    if stream[0].device.type == "cpu" and len(packing.tokens) >= LONG * packing.texts:
        sizes = packing.offsets.diff().tolist()
        visible = None
        if packing.causal or reach is not None:
            visible = visible_within(packing.tokens.new_ones(1, max(sizes)), packing.causal, reach)
        answers = [
            attend(text, None if visible is None else visible[..., :size, :size], dropout, scale)
            for size, text in zip(sizes, _texts(stream, sizes), strict=True)
        ]
        return torch.cat(answers, 2)
    queries, keys, values = (
        packing.unpack(part.transpose(1, 2)).transpose(1, 2) for part in stream
    )
    padded = attend((queries, keys, values), packing.visible(reach), dropout, scale)
    return packing.pack(padded.transpose(1, 2)).transpose(1, 2)


def _texts(stream: Triple, sizes: list[int]) -> Iterable[Triple]:
    queries, keys, values = (torch.split(part, sizes, 2) for part in stream)
    return zip(queries, keys, values, strict=True)


def has_kernel(states: Tensor) -> bool:
    """Whether flash attention computes these states, as they are."""
    width = states.shape[-1]
    return (
        states.device.type == "cuda"
        and states.dtype in (torch.bfloat16, torch.float16)
        and width % 8 == 0
        and width <= 256
        and torch.backends.cuda.is_flash_attention_available()
        and not torch.version.hip
        and torch.cuda.get_device_capability(states.device) >= (8,)
    )


def _variable_length(
    stream: Triple,
    packing: Packing,
    dropout: float,
    scale: float | None,
    reach: int | None,
    asking: Asking | None = None,
) -> Tensor:
    # The operator below torch.nn.attention.varlen, which has no dropout itself.
    left, right = (-1, -1) if reach is None else (reach, reach)
    longest = packing.length  # an upper bound is enough, and needs no synchronisation
    ours, theirs = (packing.offsets,) * 2 if asking is None else asking.texts(packing)
    answers: Tensor = torch.ops.aten._flash_attention_forward(
        # Not part[0], whose gradient would be copied into zeros.
        *(part.squeeze(0).transpose(0, 1) for part in stream),
        ours,
        theirs,
        longest,
        longest,
        dropout,
        packing.causal and reach is None,
        False,  # nothing to debug
        scale=scale,
        window_size_left=left,
        window_size_right=0 if packing.causal else right,
    )[0]
    return answers.transpose(0, 1)[None]


def _sdpa(triple: Triple, visible: Tensor | None, dropout: float, scale: float | None) -> Tensor:
    return scaled_dot_product_attention(*triple, attn_mask=visible, dropout_p=dropout, scale=scale)


def _products(
    triple: Triple, visible: Tensor | None, dropout: float, scale: float | None
) -> Tensor:
    """Attention in plain products; `visible` is boolean, or numbers that are added to scores."""
    queries, keys, values = triple
    scores = (
        queries @ keys.transpose(2, 3) * (queries.shape[-1] ** -0.5 if scale is None else scale)
    )
    if visible is not None:
        if visible.dtype == torch.bool:
            visible = ~visible * torch.finfo(torch.float32).min
        scores = scores + visible
    return drop(scores.softmax(-1), dropout) @ values


def _of_transformers(attend: Attend) -> Callable[..., tuple[Tensor, None]]:
    def attention(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        scaling: float | None = None,
        dropout: float = 0.0,
        packing: Packing | None = None,
        sliding_window: int | None = None,
        position_bias: Tensor | None = None,
        **_: Any,
    ) -> tuple[Tensor, None]:
        assert position_bias is None, "an architecture whose layers do not pack"
        triple = query, key, value
        rate = dropout if module.training else 0.0
        if packing is None:
            answers = attend(triple, attention_mask, rate, scaling)
        else:
            # transformers counts the token itself in its window.
            reach = None if sliding_window is None else sliding_window - 1
            answers = _within_texts(attend, triple, packing, rate, scaling, reach)
        return answers.transpose(1, 2).contiguous(), None

    return attention


_plain, _fused = _of_transformers(_products), _of_transformers(_sdpa)
