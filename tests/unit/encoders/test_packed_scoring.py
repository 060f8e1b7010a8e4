"""Scores of pairs without padding are those of padded ones, on whatever device they are made."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.factories import bert
from transformers import BertForSequenceClassification

from isthmus.encoders import encoder as module
from isthmus.encoders.cross import CrossEncoder, CrossSettings
from isthmus.nn.classifier import Classifier
from isthmus.nn.packing import Packing
from isthmus.text.tokenizer import new_tokenizer

TOKENIZER = new_tokenizer(["the quick brown fox jumps over the lazy dog"] * 2, 90)
TOKENIZER.pretrained.model_input_names = ["input_ids", "attention_mask", "token_type_ids"]
NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
# Device and type, and how far from float32 a score may be, as a share of how much scores differ.
PLACES = [
    pytest.param("cpu", torch.float32, 1e-4, id="cpu"),
    pytest.param("cpu", torch.bfloat16, 0.2, id="cpu-bf16"),
    pytest.param("cuda", torch.bfloat16, 0.2, id="cuda-bf16", marks=NO_GPU),
]


def made() -> CrossEncoder:
    torch.manual_seed(0)
    config = bert(
        len(TOKENIZER),
        hidden_size=64,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=144,
        initializer_range=0.1,
        attn_implementation="sdpa",
        num_labels=1,
    )
    settings = CrossSettings(query_max_length=30, document_max_length=100)
    return CrossEncoder(Classifier(BertForSequenceClassification(config)), TOKENIZER, settings)


def texts(count: int, longest: int) -> list[np.ndarray]:
    generator = np.random.default_rng(longest)
    lengths = generator.integers(0, longest, count)
    return [generator.integers(5, len(TOKENIZER), length) for length in lengths]


@pytest.mark.parametrize(("device", "dtype", "tolerance"), PLACES)
def test_packed_is_padded(
    device: str, dtype: torch.dtype, tolerance: float,
    packed: list[Packing], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    # Several batches, with pairs of all lengths in each.
    monkeypatch.setattr(module, "ON_CPU", 1 << 10)
    monkeypatch.setattr(module, "ON_GPU", 1 << 10)
    encoder = made()
    queries, documents = texts(150, 10), texts(150, 30)
    encoder.backbone.use_packing = False
    expected = encoder.score_tokens(queries, documents)
    assert not packed
    encoder.backbone.use_packing = True
    encoder.backbone.to(device, dtype)
    found = encoder.score_tokens(queries, documents)
    assert found.dtype == np.float32
    assert sum(packing.saves and not packing.full for packing in packed) >= 2
    assert np.abs(found - expected).max() <= tolerance * expected.std()
