"""Vectors are those of sentence-transformers, in both directions."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from tests.factories import bert
from transformers import BertForMaskedLM

from isthmus.config.models import MINILM, model_folder
from isthmus.encoders.dense import DenseEncoder, DenseSettings
from isthmus.encoders.loader import load_encoder
from isthmus.encoders.model_settings import stored_settings
from isthmus.errors import MissingPackageError
from isthmus.nn.backbone import Backbone
from isthmus.records import Document
from isthmus.text.tokenizer import Tokenizer, new_tokenizer

TEXTS = [
    "the quick brown fox",
    "dog",
    "jumps over the lazy dog and " * 20,  # longer than the limit
    "",
    "Unknown Wörter 日本",
]
KINDS = [("cls", "dot"), ("mean", "cosine"), ("mean", "dot"), ("cls", "cosine")]


def made(pooling: str, similarity: str) -> DenseEncoder:
    torch.manual_seed(0)
    tokenizer = new_tokenizer(["the quick brown fox jumps over the lazy dog and"] * 2, 90)
    config = bert(len(tokenizer))
    settings = DenseSettings.parse(
        {"pooling": pooling, "similarity": similarity, "query_max_length": 24,
         "document_max_length": 24},
        where="test",
    )  # fmt: skip
    return DenseEncoder(Backbone(BertForMaskedLM(config)), tokenizer, settings)


@pytest.mark.parametrize(("pooling", "similarity"), KINDS)
def test_a_saved_encoder_gives_the_same_vectors_there(
    pooling: str, similarity: str, tmp_path: Path
) -> None:
    encoder = made(pooling, similarity)
    encoder.save(tmp_path)
    there = SentenceTransformer(str(tmp_path), device="cpu")
    assert there.max_seq_length == 24
    assert there.similarity_fn_name == similarity
    expected = encoder.encode_documents([Document("", text) for text in TEXTS])
    np.testing.assert_allclose(there.encode(TEXTS), expected, atol=1e-5)


@pytest.mark.parametrize(("pooling", "similarity"), KINDS)
def test_a_model_saved_there_gives_the_same_vectors_here(
    pooling: str, similarity: str, tmp_path: Path
) -> None:
    made(pooling, similarity).save(tmp_path / "ours")
    there = SentenceTransformer(str(tmp_path / "ours"), device="cpu")
    there.save(str(tmp_path / "theirs"), create_model_card=False)
    assert not (tmp_path / "theirs" / "encoder.json").exists()
    folder = str(tmp_path / "theirs")
    settings = stored_settings(folder).settings
    assert (settings.pooling, settings.similarity) == (pooling, similarity)
    assert (settings.query_max_length, settings.document_max_length) == (24, 24)
    encoder = DenseEncoder(Backbone.load(folder), Tokenizer.load(folder), settings)
    np.testing.assert_allclose(encoder.encode_queries(TEXTS), there.encode(TEXTS), atol=1e-5)


@pytest.mark.parametrize(("pooling", "similarity"), KINDS[:2])
def test_only_class_paths_that_versions_5_and_6_share(
    pooling: str, similarity: str, tmp_path: Path
) -> None:
    made(pooling, similarity).save(tmp_path)
    modules = json.loads((tmp_path / "modules.json").read_text())
    kinds = ["Transformer", "Pooling"] + (["Normalize"] if similarity == "cosine" else [])
    assert [m["type"] for m in modules] == [f"sentence_transformers.models.{k}" for k in kinds]
    assert [m["path"] for m in modules] == ["", "1_Pooling", "2_Normalize"][: len(kinds)]
    pooling_file = json.loads((tmp_path / "1_Pooling" / "config.json").read_text())
    chosen = [key for key, value in pooling_file.items() if value is True]
    names = {"cls": "pooling_mode_cls_token", "mean": "pooling_mode_mean_tokens"}
    assert chosen == [names[pooling], "include_prompt"]


@pytest.fixture(scope="module")
def minilm() -> str:
    try:
        return model_folder(MINILM)
    except MissingPackageError as error:
        pytest.skip(str(error))


def test_the_carried_minilm_encodes_as_there(minilm: str) -> None:
    texts = [*TEXTS, "What is a bottleneck?", "A long text about search engines. " * 60]
    there = SentenceTransformer(minilm, device="cpu")
    settings = stored_settings(MINILM).settings
    assert (settings.pooling, settings.similarity) == ("mean", "cosine")
    assert settings.document_max_length == there.max_seq_length
    encoder = DenseEncoder(Backbone.load(minilm), Tokenizer.load(minilm), settings)
    expected = there.encode(texts)
    np.testing.assert_allclose(encoder.encode_queries(texts), expected, atol=1e-5)
    # In the precision this machine is fastest in, texts still rank alike.
    fast = load_encoder(MINILM)
    assert fast.fingerprint == encoder.fingerprint
    cosines = (fast.encode_queries(texts) * expected).sum(1)
    assert cosines.min() > 0.999
