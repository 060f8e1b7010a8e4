"""What a recipe asks of the chip for one batch: its parts, put into the words of arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from isthmus.benchmarks.speed.arithmetic import (
    FIXED,
    FORWARD,
    TRAINED,
    Shape,
    causal_pairs,
    decoder,
    encoder,
    pairs,
    prediction,
)
from isthmus.nn.backbone import Backbone
from isthmus.nn.layer_shape import LayerShape
from isthmus.pretraining.bottlenecks.cls import Cls
from isthmus.pretraining.bottlenecks.lexicon import Lexicon
from isthmus.pretraining.bottlenecks.projected_cls import ProjectedCls
from isthmus.pretraining.corruption.importance import Importance
from isthmus.pretraining.corruption.nested import Nested
from isthmus.pretraining.corruption.uniform import Uniform
from isthmus.pretraining.corruption.whole_word import WholeWord
from isthmus.pretraining.decoders.autoregressive import Autoregressive
from isthmus.pretraining.decoders.bidirectional import Bidirectional
from isthmus.pretraining.decoders.condenser import Condenser
from isthmus.pretraining.decoders.enhanced import Enhanced
from isthmus.pretraining.labels import IGNORED
from isthmus.pretraining.objectives.bag_of_words import BagOfWords
from isthmus.pretraining.objectives.masked_lm import MaskedLm
from isthmus.pretraining.objectives.reconstruction import Reconstruction
from isthmus.pretraining.objectives.replaced_token import ReplacedToken
from isthmus.pretraining.objectives.span_contrast import SpanContrast
from isthmus.pretraining.objectives.term_frequency import TermFrequency
from isthmus.pretraining.recipe import Parts
from isthmus.pretraining.views.neighbours import Neighbours
from isthmus.pretraining.views.same import Same
from isthmus.pretraining.vocabulary import Vocabulary
from isthmus.training.task import Batch


@dataclass(frozen=True)
class Texts:
    """What is in one batch, as far as arithmetic depends on it."""

    lengths: tuple[int, ...]  # of every row, without padding
    inside: int  # tokens that are not special
    labelled: tuple[int, ...] = ()  # of every row
    decoder_labelled: tuple[int, ...] = ()

    @classmethod
    def of(cls, batch: Batch, vocabulary: Vocabulary) -> Texts:
        """Those of a prepared batch; waits for the device."""
        return cls(
            lengths=tuple(batch["attention_mask"].sum(1).tolist()),
            inside=int((~vocabulary.is_special(batch["input_ids"])).sum()),
            labelled=_labelled(batch.get("labels")),
            decoder_labelled=_labelled(batch.get("decoder_labels")),
        )


def _labelled(labels: Tensor | None) -> tuple[int, ...]:
    return () if labels is None else tuple((labels != IGNORED).sum(1).tolist())


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
    """What masked LM alone asks for, whoever computes it."""
    states = encoder(shape, texts.lengths, texts.labelled)
    return TRAINED * (states + prediction(shape, sum(texts.labelled)))


def operations(parts: Parts, shape: Shape, texts: Texts) -> int | None:
    """Useful floating-point operations of training on one batch; None where a part is unknown."""
    total = TRAINED * encoder(shape, texts.lengths, read(parts, texts))
    for part in parts:
        count = _COUNTS.get(type(part))
        if count is None:
            return None
        total += count(part, shape, texts)
    return total


def read(parts: Parts, texts: Texts) -> list[int] | None:
    """How many of each text's last states some part reads; None: all."""
    reads = {part.reads for part in parts if "hidden_states" in part.requires}
    if "all" in reads:
        return None
    labelled = texts.labelled if "labels" in reads else (0,) * len(texts.lengths)
    return [count + ("first" in reads) for count in labelled]


def _nothing(part: Any, shape: Shape, texts: Texts) -> int:
    return 0


def _projected(part: Any, shape: Shape, texts: Texts) -> int:
    return TRAINED * len(texts.lengths) * shape.width**2


def _lexicon(part: Any, shape: Shape, texts: Texts) -> int:
    # Logits of every token, of which only the largest have a slope, so that there is no product
    # behind them; then their weights times the embeddings, which are not trained here.
    head, logits = texts.inside * shape.head, texts.inside * shape.vocabulary
    return TRAINED * head + FORWARD * logits + FIXED * len(texts.lengths) * shape.vocabulary


def _stack(part: Any, shape: Shape, texts: Texts) -> int:
    seen = pairs(texts.lengths)
    return _decoder(shape, texts, part.settings.layers, seen, texts.decoder_labelled)


def _autoregressive(part: Any, shape: Shape, texts: Texts) -> int:
    return _decoder(shape, texts, 1, causal_pairs(texts.lengths, part.settings.window))


def _enhanced(part: Any, shape: Shape, texts: Texts) -> int:
    # Of all pairs: those that a row does not see lie scattered among those it sees.
    return _decoder(shape, texts, 1, pairs(texts.lengths))


def _decoder(
    shape: Shape, texts: Texts, layers: int, seen: int, read: Sequence[int] | None = None
) -> int:
    states = decoder(shape, texts.lengths, layers, seen, read)
    return TRAINED * (states + prediction(shape, sum(texts.decoder_labelled)))


def _labels(part: Any, shape: Shape, texts: Texts) -> int:
    return TRAINED * prediction(shape, sum(texts.labelled))


def _tokens(part: Any, shape: Shape, texts: Texts) -> int:
    return TRAINED * prediction(shape, texts.inside)


def _vectors(part: Any, shape: Shape, texts: Texts) -> int:
    return TRAINED * prediction(shape, len(texts.lengths))


def _bag_of_words(part: Any, shape: Shape, texts: Texts) -> int:
    if part.settings.projection == "embeddings":
        return TRAINED * len(texts.lengths) * shape.vocabulary
    return _vectors(part, shape, texts)


def _contrast(part: Any, shape: Shape, texts: Texts) -> int:
    return TRAINED * len(texts.lengths) ** 2 * shape.width


# Not here: the corruption `generator`, which runs another model.
_COUNTS: dict[type, Callable[[Any, Shape, Texts], int]] = {
    Same: _nothing,
    Neighbours: _nothing,
    Uniform: _nothing,
    WholeWord: _nothing,
    Importance: _nothing,
    Nested: _nothing,
    Cls: _nothing,
    ProjectedCls: _projected,
    Lexicon: _lexicon,
    Bidirectional: _stack,
    Condenser: _stack,
    Autoregressive: _autoregressive,
    Enhanced: _enhanced,
    MaskedLm: _labels,
    Reconstruction: _nothing,  # its logits are the decoder's
    ReplacedToken: _tokens,
    BagOfWords: _bag_of_words,
    TermFrequency: _vectors,
    SpanContrast: _contrast,
}


def counted() -> Sequence[type]:
    """The parts whose arithmetic is known."""
    return list(_COUNTS)
