"""The matrix products that a recipe needs for one batch: its encoder's and those of its parts."""

from __future__ import annotations

from typing import Any

from torch import nn

from isthmus.nn.architectures import LayerShape
from isthmus.nn.backbone import Backbone
from isthmus.pretraining.arithmetic import TRAINED, Shape, Texts, encoder, prediction
from isthmus.pretraining.recipe import Parts


def shape_of(backbone: Backbone) -> Shape:
    """The matrices of a backbone, and of a decoder's layer beside it."""
    config = backbone.config
    layer = LayerShape.of(config)
    vocabulary = backbone.model.get_output_embeddings()
    return Shape(
        width=layer.width,
        linear=_linear(backbone.encoder),
        reaches=_reaches(config),
        head=sum(_linear(module, vocabulary) for module in backbone.head_modules or ()),
        vocabulary=backbone.word_embeddings.numel(),
        layer=4 * layer.width**2 + 2 * layer.width * layer.intermediate,
        last=_linear(backbone.layers[-1]),
    )


def _linear(module: nn.Module, without: nn.Module | None = None) -> int:
    maps = (inner for inner in module.modules() if isinstance(inner, nn.Linear))
    return sum(inner.weight.numel() for inner in maps if inner is not without)


def _reaches(config: Any) -> tuple[int | None, ...]:
    # ModernBERT's local layers see half of `local_attention` to either side.
    kinds = getattr(config, "layer_types", None) or ["full_attention"] * config.num_hidden_layers
    return tuple(
        config.local_attention // 2 if kind == "sliding_attention" else None for kind in kinds
    )


def masked_lm_operations(shape: Shape, texts: Texts) -> int:
    """Useful operations of masked LM alone, in any implementation."""
    states = encoder(shape, texts.lengths, texts.labelled)
    return TRAINED * (states + prediction(shape, sum(texts.labelled)))


def operations(parts: Parts, shape: Shape, texts: Texts) -> int | None:
    """Useful floating-point operations of training on one batch; None where a part cannot tell."""
    total = TRAINED * encoder(shape, texts.lengths, read(parts, texts))
    for part in parts:
        count = part.operations(shape, texts)
        if count is None:
            return None
        total += count
    return total


def read(parts: Parts, texts: Texts) -> list[int] | None:
    """How many of each text's last states some part reads; None: all."""
    reads = {part.reads for part in parts if "hidden_states" in part.requires}
    if "all" in reads:
        return None
    labelled = texts.labelled if "labels" in reads else (0,) * len(texts.lengths)
    return [count + ("first" in reads) for count in labelled]
