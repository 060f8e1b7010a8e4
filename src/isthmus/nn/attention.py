"""Attention as transformers asks for it, of padded batches and of packed ones.

Two kinds, `eager` in plain products (quicker to train with on a CPU) and `sdpa` through torch's
fused kernels, are registered with transformers under names of our own. Both give what the kind of
the same name gives there, and take a `packing` besides: then queries, keys and values are one
stream of the tokens of many texts, and each text attends to itself.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from isthmus.nn.dropout import drop
from isthmus.nn.packing import Packing, visible_within

Attention = Literal["sdpa", "eager"]
_NAMES: dict[Attention, str] = {"eager": "isthmus_plain", "sdpa": "isthmus_fused"}
# Architectures that ask for attention and hand on the packing. MPNet attends by itself, to add a
# bias by relative position; tests/parity holds each of these, packed, against itself, padded.
_ASKING = frozenset(
    {"bert", "camembert", "distilbert", "electra", "modernbert", "roberta", "xlm-roberta"}
)
# Tokens per text, on average, from which a CPU is quicker with one text after the other: what it
# works on stays in its caches, and nothing is computed of padding (benchmarks/packing.py).
_LONG = 64
# Query, key, value [texts, heads, length, width], what each row sees, dropout, scale -> answers.
Attend = Callable[[Tensor, Tensor, Tensor, Tensor | None, float, float | None], Tensor]


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
    """Whether a model of transformers can be given packed texts, which it can from here on."""
    if model.config.model_type not in _ASKING:
        return False
    kind = model.config._attn_implementation
    if kind in _NAMES:
        model.set_attn_implementation(attention_name(kind))
    return model.config._attn_implementation in _NAMES.values()


def packed_attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    packing: Packing,
    dropout: float = 0.0,
    scale: float | None = None,
    reach: int | None = None,
) -> Tensor:
    """What each text of a stream answers itself, [1, heads, tokens, width] like all that is given.

    With a `reach`, a token sees no further than so many others to either side.
    """
    return _within_texts(_sdpa, (queries, keys, values), packing, dropout, scale, reach)


def _within_texts(
    attend: Attend,
    stream: tuple[Tensor, Tensor, Tensor],
    packing: Packing,
    dropout: float,
    scale: float | None,
    reach: int | None,
) -> Tensor:
    if _has_kernel(stream[0]):
        return _variable_length(*stream, packing, dropout, scale, reach)
    if stream[0].device.type == "cpu" and len(packing.tokens) >= _LONG * packing.texts:
        return _text_by_text(attend, stream, packing, dropout, scale, reach)
    padded = (packing.unpack(states.transpose(1, 2)).transpose(1, 2) for states in stream)
    answers = attend(*padded, packing.visible(reach), dropout, scale)
    return packing.pack(answers.transpose(1, 2)).transpose(1, 2)


def _text_by_text(
    attend: Attend,
    stream: tuple[Tensor, Tensor, Tensor],
    packing: Packing,
    dropout: float,
    scale: float | None,
    reach: int | None,
) -> Tensor:
    sizes = packing.offsets.diff().tolist()
    whole = None
    if packing.causal or reach is not None:
        present = torch.ones(1, max(sizes), dtype=torch.bool, device=packing.tokens.device)
        whole = visible_within(present, packing.causal, reach)
    answers = []
    for size, *text in zip(sizes, *(states.split(sizes, 2) for states in stream), strict=True):
        visible = None if whole is None else whole[..., :size, :size]
        answers.append(attend(*text, visible, dropout, scale))
    return torch.cat(answers, 2)


def _has_kernel(states: Tensor) -> bool:
    width = states.shape[-1]
    return (
        states.device.type == "cuda"
        and states.dtype in (torch.bfloat16, torch.float16)
        and width % 8 == 0
        and width <= 256
        and _flash(states.device.index)
    )


@lru_cache
def _flash(device: int) -> bool:
    available = torch.backends.cuda.is_flash_attention_available()
    return available and not torch.version.hip and torch.cuda.get_device_capability(device) >= (8,)


def _variable_length(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    packing: Packing,
    dropout: float,
    scale: float | None,
    reach: int | None,
) -> Tensor:
    # The operator below torch.nn.attention.varlen, which has no dropout: with it, BERT's own.
    behind, ahead = (-1, -1) if reach is None else (reach, reach)
    if packing.causal:
        ahead = 0
    longest = packing.length  # an upper bound is enough, and known without asking the device
    answers, *_ = torch.ops.aten._flash_attention_forward(
        *(states[0].transpose(0, 1) for states in (queries, keys, values)),
        packing.offsets,
        packing.offsets,
        longest,
        longest,
        dropout,
        packing.causal and reach is None,
        False,  # nothing to debug
        scale=scale,
        window_size_left=behind,
        window_size_right=ahead,
    )
    return answers.transpose(0, 1)[None]


def _sdpa(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    visible: Tensor | None,
    dropout: float,
    scale: float | None,
) -> Tensor:
    return scaled_dot_product_attention(
        queries, keys, values, attn_mask=visible, dropout_p=dropout, scale=scale
    )


def _products(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    visible: Tensor | None,
    dropout: float,
    scale: float | None,
) -> Tensor:
    """In plain products; `visible` True or False, or numbers to add as transformers makes them."""
    scores = (
        queries @ keys.transpose(2, 3) * (queries.shape[-1] ** -0.5 if scale is None else scale)
    )
    if visible is not None and visible.dtype == torch.bool:
        visible = ~visible * torch.finfo(torch.float32).min
    if visible is not None:
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
        **_: Any,
    ) -> tuple[Tensor, None]:
        rate = dropout if module.training else 0.0
        if packing is None:
            answers = attend(query, key, value, attention_mask, rate, scaling)
        else:
            # ModernBERT counts the token itself: flash attention, for which it does, does not.
            reach = None if sliding_window is None else sliding_window - 1
            answers = _within_texts(attend, (query, key, value), packing, rate, scaling, reach)
        return answers.transpose(1, 2).contiguous(), None

    return attention


_plain, _fused = _of_transformers(_products), _of_transformers(_sdpa)
