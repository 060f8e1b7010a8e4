"""Modules after pooling, and truncated vectors, are those of sentence-transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import LayerNorm, Pooling
from tests.factories import bert
from torch import nn
from transformers import BertModel

from isthmus.encoders import DenseEncoder, load_encoder
from isthmus.finetuning.registries import KINDS
from isthmus.finetuning.settings import FinetuneSettings
from isthmus.records import Document
from isthmus.text.tokenizer import new_tokenizer

TEXTS = ["the quick brown fox", "dog", "jumps over the lazy dog and " * 20, "", "Wörter 日本"]
DOCUMENTS = [Document("", text) for text in TEXTS]
TOKENIZER = new_tokenizer(["the quick brown fox jumps over the lazy dog and"] * 2, 90)


def close(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("plain")
    torch.manual_seed(0)
    config = bert(len(TOKENIZER), num_hidden_layers=1)
    BertModel(config).save_pretrained(folder)
    TOKENIZER.save(folder)
    return folder


def saved(plain: Path, folder: Path, *modules: Any, **options: Any) -> SentenceTransformer:
    transformer = Transformer(str(plain), max_seq_length=24)
    there = SentenceTransformer(
        modules=[transformer, Pooling(16, "mean"), *modules], device="cpu", **options
    )
    there.save(str(folder), create_model_card=False)
    return SentenceTransformer(str(folder), device="cpu")


def gtr(*after: Any) -> list[Any]:
    torch.manual_seed(1)
    return [Dense(16, 12, bias=False, activation_function=nn.Identity()), *after]


LISTS: dict[str, Any] = {
    "as GTR": lambda: gtr(Normalize()),
    "as LaBSE": lambda: [Dense(16, 16), Normalize()],
    "several": lambda: [
        Dense(16, 24, activation_function=nn.GELU()), LayerNorm(24),
        Dense(24, 8, activation_function=nn.ReLU()),
    ],
    "residual": lambda: [Dense(16, 16, use_residual=True), Dense(16, 8, use_residual=True)],
    "normalised before": lambda: [Normalize(), *gtr()],
    "normalised twice": lambda: [Normalize(), *gtr(Normalize())],
}  # fmt: skip


@pytest.mark.parametrize("name", LISTS)
def test_modules_after_pooling(name: str, plain: Path, tmp_path: Path) -> None:
    there = saved(plain, tmp_path / "theirs", *LISTS[name]())
    here = load_encoder(str(tmp_path / "theirs"), exact=True)
    assert here.dimension == there.get_embedding_dimension()
    expected = there.encode(TEXTS, normalize_embeddings=here.settings.similarity == "cosine")
    close(here.encode_queries(TEXTS), expected)
    close(here.encode_documents(DOCUMENTS), expected)
    here.save(tmp_path / "ours")
    close(SentenceTransformer(str(tmp_path / "ours"), device="cpu").encode(TEXTS), expected)
    again = load_encoder(str(tmp_path / "ours"), exact=True)
    assert again.fingerprint == here.fingerprint
    close(again.encode_queries(TEXTS), expected)


@pytest.mark.parametrize("similarity", ["dot", "cosine"])
def test_truncated_dimensions(similarity: str, plain: Path, tmp_path: Path) -> None:
    options = {"truncate_dim": 5, "similarity_fn_name": similarity}
    there = saved(plain, tmp_path / "theirs", *gtr(), **options)
    here = load_encoder(str(tmp_path / "theirs"), exact=True)
    assert (here.dimension, here.settings.truncate_dim) == (5, 5)
    expected = there.encode(TEXTS, normalize_embeddings=similarity == "cosine")
    assert expected.shape == (5, 5)
    close(here.encode_documents(DOCUMENTS), expected)
    here.save(tmp_path / "ours")
    ours = SentenceTransformer(str(tmp_path / "ours"), device="cpu")
    vectors = ours.encode(TEXTS)
    scores = here.encode_queries(TEXTS) @ here.encode_documents(DOCUMENTS).T
    close(ours.similarity(vectors, vectors).numpy(), scores)
    longer = load_encoder(str(tmp_path / "theirs"), {"truncate_dim": 9}, exact=True)
    assert longer.fingerprint != here.fingerprint
    expected = there.encode(TEXTS, truncate_dim=9, normalize_embeddings=similarity == "cosine")
    close(longer.encode_queries(TEXTS), expected)


def test_training_goes_through_them(plain: Path, tmp_path: Path) -> None:
    saved(plain, tmp_path / "theirs", *LISTS["as LaBSE"]())
    chosen = FinetuneSettings(
        model="m", collection="c", output="o", pooling="mean", similarity="cosine",
        query_max_length=24, document_max_length=24, truncate_dim=8,
    )  # fmt: skip
    kind = KINDS.load("dense")(chosen.model_dump())
    encoder: DenseEncoder = kind.load(str(tmp_path / "theirs"), None, 0)
    task = kind.task(encoder, 1, [], None)
    assert encoder.projection is not None
    weight = encoder.projection[0].linear.weight
    assert any(parameter is weight for parameter in task.parameters())
    before = encoder.encode_queries(TEXTS)
    encoder.represent(encoder.tokenise_queries(TEXTS[:2])).sum().backward()
    assert weight.grad is not None
    assert weight.grad[:8].abs().sum() > 0
    assert weight.grad[8:].abs().sum() == 0, "what is cut off learns nothing"
    with torch.no_grad():
        weight.neg_()[:4] *= 2
    task.save(tmp_path / "checkpoint")
    changed = encoder.encode_queries(TEXTS)
    assert np.abs(changed - before).max() > 0.01
    with torch.no_grad():
        weight.zero_()
    task.restore(tmp_path / "checkpoint")
    close(encoder.encode_queries(TEXTS), changed)
    close(load_encoder(str(tmp_path / "checkpoint"), exact=True).encode_queries(TEXTS), changed)
