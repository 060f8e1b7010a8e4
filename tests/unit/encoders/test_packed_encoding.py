"""Vectors of texts without padding are those of padded ones, on whatever device they are made."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.factories import bert
from transformers import BertForMaskedLM

from isthmus.encoders import DenseEncoder, SparseEncoder
from isthmus.encoders import encoder as module
from isthmus.encoders.dense import DenseSettings
from isthmus.encoders.sparse import SparseSettings
from isthmus.nn.backbone import Backbone
from isthmus.nn.packing import Packing
from isthmus.records import Document
from isthmus.text.tokenizer import new_tokenizer

TOKENIZER = new_tokenizer(["the quick brown fox jumps over the lazy dog"] * 2, 90)
WORDS = ["the", "quick", "brown", "fox", "jumps", "over", "lazy", "dog"]
NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
# Device and type, and how far from float32 a vector may be, as a share of its length: two layers,
# each rounded to 8 bits some ten times.
PLACES = [
    pytest.param("cpu", torch.float32, 1e-5, id="cpu"),
    pytest.param("cpu", torch.bfloat16, 2e-2, id="cpu-bf16"),
    pytest.param("cuda", torch.bfloat16, 2e-2, id="cuda-bf16", marks=NO_GPU),
]
ENCODERS = {
    "cls": (DenseEncoder, DenseSettings(pooling="cls")),
    "mean": (DenseEncoder, DenseSettings(pooling="mean", similarity="cosine")),
    "splade": (SparseEncoder, SparseSettings(form="splade")),
    "lexmae": (SparseEncoder, SparseSettings(form="lexmae")),
}


def made(kind: str) -> DenseEncoder | SparseEncoder:
    torch.manual_seed(0)
    config = bert(
        len(TOKENIZER),
        hidden_size=64,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=144,
        initializer_range=0.1,
        attn_implementation="sdpa",
    )
    encoder, settings = ENCODERS[kind]
    return encoder(Backbone(BertForMaskedLM(config)), TOKENIZER, settings)  # type: ignore[arg-type, return-value]


def documents(count: int) -> list[Document]:
    generator = np.random.default_rng(1)
    texts = (" ".join(generator.choice(WORDS, generator.integers(0, 24))) for _ in range(count))
    return [Document(str(number), text) for number, text in enumerate(texts)]


def rows(vectors: Any) -> np.ndarray:
    return vectors if isinstance(vectors, np.ndarray) else vectors.toarray()


@pytest.mark.parametrize("kind", ENCODERS)
@pytest.mark.parametrize(("device", "dtype", "tolerance"), PLACES)
def test_packed_is_padded(
    kind: str, device: str, dtype: torch.dtype, tolerance: float,
    packed: list[Packing], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    # Several batches in each of several blocks, and texts of all lengths in each batch.
    monkeypatch.setattr(module, "ON_CPU", 1 << 7)
    monkeypatch.setattr(module, "ON_GPU", 1 << 7)
    texts = documents(66)
    blocks = [texts[:32], [], texts[32:33], texts[33:]]
    encoder = made(kind)
    encoder.backbone.use_packing = False
    expected = [rows(vectors) for _, vectors in encoder.encode_blocks(blocks)]
    assert not packed
    encoder.backbone.use_packing = True
    encoder.backbone.to(device, dtype)
    found = list(encoder.encode_blocks(blocks))
    assert sum(packing.saves and not packing.full for packing in packed) >= 4
    assert len(packed) >= 7
    assert [block for block, _ in found] == blocks
    for (_, vectors), exact in zip(found, expected, strict=True):
        assert vectors.dtype == np.float32
        errors = np.linalg.norm(rows(vectors) - exact, axis=1)
        assert (errors <= tolerance * np.linalg.norm(exact, axis=1)).all(), errors.max()
