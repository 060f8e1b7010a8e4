"""A BERT small enough to recompute with plain numbers, and its head written as loops."""

from __future__ import annotations

import math
from collections.abc import Callable
from string import ascii_lowercase

import pytest
import torch
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import models, pre_tokenizers, processors
from transformers import BertConfig, BertForMaskedLM, PreTrainedTokenizerFast

from isthmus.nn.backbone import Backbone
from isthmus.pretrain.parts import Vocabulary
from isthmus.text.tokenizer import Tokenizer

Vector = list[float]
Head = Callable[[Vector], Vector]


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    """A few words, letters and their continuations, written down: a learnt one breaks ties anew."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words = ["cat", "sat", "on", "mat", "dog", "ran", "to", "the", "end"]
    pieces = [*ascii_lowercase, *(f"##{letter}" for letter in ascii_lowercase)]
    ids = {token: number for number, token in enumerate([*special, *words, *pieces])}
    backend = FastTokenizer(models.WordPiece(ids, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return Tokenizer(
        PreTrainedTokenizerFast(
            tokenizer_object=backend,
            pad_token="[PAD]",
            unk_token="[UNK]",
            cls_token="[CLS]",
            sep_token="[SEP]",
            mask_token="[MASK]",
        )
    )


@pytest.fixture
def backbone(tokenizer: Tokenizer) -> Backbone:
    """A random BERT in float64; its matrix has three rows more than the tokenizer has tokens."""
    torch.manual_seed(3)
    config = BertConfig(
        vocab_size=len(tokenizer) + 3,
        hidden_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=144,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        initializer_range=0.4,
    )
    backbone = Backbone(BertForMaskedLM(config)).double()
    for parameter in backbone.parameters():  # biases and LayerNorms that matter
        parameter.data += 0.1 * torch.randn_like(parameter)
    return backbone


@pytest.fixture
def vocabulary(tokenizer: Tokenizer, backbone: Backbone) -> Vocabulary:
    return Vocabulary(tokenizer, size=len(backbone.word_embeddings))


@pytest.fixture
def plain_head(backbone: Backbone) -> Callable[[], Head]:
    """The head of methods as loops over the weights of this moment: dense, GELU, LayerNorm, Eᵀ."""

    def read() -> Head:
        predictions = backbone.model.cls.predictions
        dense = predictions.transform.dense.weight.tolist()
        bias = predictions.transform.dense.bias.tolist()
        scale = predictions.transform.LayerNorm.weight.tolist()
        shift = predictions.transform.LayerNorm.bias.tolist()
        epsilon = backbone.config.layer_norm_eps
        embeddings = backbone.word_embeddings.tolist()
        output = predictions.bias.tolist()

        def head(state: Vector) -> Vector:
            inner = [dot(row, state) + b for row, b in zip(dense, bias, strict=True)]
            inner = [0.5 * x * (1 + math.erf(x / math.sqrt(2))) for x in inner]
            mean = sum(inner) / len(inner)
            variance = sum((x - mean) ** 2 for x in inner) / len(inner)
            inner = [
                (x - mean) / math.sqrt(variance + epsilon) * g + b
                for x, g, b in zip(inner, scale, shift, strict=True)
            ]
            return [dot(row, inner) + b for row, b in zip(embeddings, output, strict=True)]

        return head

    return read


def dot(one: Vector, two: Vector) -> float:
    return sum(x * y for x, y in zip(one, two, strict=True))


@pytest.fixture
def log_softmax() -> Callable[[Vector, int], float]:
    """log softmax(scores)[target], in the order of the definition."""

    def compute(scores: Vector, target: int) -> float:
        highest = max(scores)
        total = sum(math.exp(score - highest) for score in scores)
        return scores[target] - highest - math.log(total)

    return compute


@pytest.fixture
def numerical_gradient() -> Callable[[Callable[[], float], torch.Tensor], torch.Tensor]:
    """Central differences of a plain function, entry by entry of a tensor it reads."""

    def compute(function: Callable[[], float], tensor: torch.Tensor) -> torch.Tensor:
        gradient = torch.zeros_like(tensor)
        entries, slots = tensor.data.view(-1), gradient.view(-1)
        for place in range(len(entries)):
            original = entries[place].item()
            entries[place] = original + 1e-5
            above = function()
            entries[place] = original - 1e-5
            below = function()
            entries[place] = original
            slots[place] = (above - below) / 2e-5
        return gradient

    return compute


@pytest.fixture
def check_all_weights(
    backbone: Backbone,
) -> Callable[[torch.Tensor, Callable[[], float]], None]:
    """Compares a loss's gradient with differences of a plain function, along random directions.

    Each direction moves every parameter the loss reaches: encoder, head and tied embeddings.
    """

    def check(loss: torch.Tensor, function: Callable[[], float]) -> None:
        everything = list(backbone.parameters())
        found = torch.autograd.grad(loss, everything, allow_unused=True)
        reached = [(p, g) for p, g in zip(everything, found, strict=True) if g is not None]
        assert len(reached) > len(everything) / 2
        generator = torch.Generator().manual_seed(0)
        for _ in range(3):
            direction = [torch.randn(p.shape, generator=generator).double() for p, _ in reached]
            slope = 0.0
            sides = []
            for (_, gradient), along in zip(reached, direction, strict=True):
                slope += float((gradient * along).sum())
            for size in (1e-6, -2e-6):  # one step above, one below, and home again
                for (parameter, _), along in zip(reached, direction, strict=True):
                    parameter.data.add_(along, alpha=size)
                sides.append(function())
            for (parameter, _), along in zip(reached, direction, strict=True):
                parameter.data.add_(along, alpha=1e-6)
            assert slope == pytest.approx((sides[0] - sides[1]) / 2e-6, rel=1e-4)

    return check
