"""Vectors of tokens come from the pass that gives the vector of a text, which stays as it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from isthmus.encoders.dense import DenseEncoder, DenseSettings
from isthmus.encoders.int8 import Int8Model
from isthmus.indexes.ragged import Both
from isthmus.nn.backbone import new_backbone
from isthmus.records import Document
from isthmus.text.tokenizer import new_tokenizer

TEXTS = [
    "the quick fox", "dog", "", "jumps over the lazy dog and the fox " * 30, "quick [UNK] unheard",
]  # fmt: skip
DOCUMENTS = [Document(str(number), text) for number, text in enumerate(TEXTS)]
TOKENIZER = new_tokenizer(["the quick brown fox jumps over the lazy dog"] * 2, 90)
PROMPTS = {"query_prompt": "the dog ", "document_prompt": "fox: "}


def encoder(**settings: Any) -> DenseEncoder:
    backbone = new_backbone("tiny", TOKENIZER.rows, TOKENIZER.pad_id, max_length=144, seed=0)
    return DenseEncoder(backbone, TOKENIZER, DenseSettings.parse(settings, "test"))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"pooling": "mean", "similarity": "cosine", "truncate_dim": 9},
        {"pooling": "mean", "include_prompt": False, "query_max_length": 12, **PROMPTS},
    ],
)
def test_tokens_are_normalised_last_states_and_the_vector_is_the_same(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    plain = encoder(**settings)
    plain.save(tmp_path)
    there, tokenizer = (one.from_pretrained(tmp_path) for one in (AutoModel, AutoTokenizer))
    both = plain.with_tokens()
    limits = plain.settings.query_max_length, plain.settings.document_max_length
    prompts = plain.settings.prompts()
    for queries, prompt, limit in zip((True, False), prompts, limits, strict=True):
        found, vectors = (
            one.encode_queries(TEXTS) if queries else one.encode_documents(DOCUMENTS)
            for one in (both, plain)
        )
        np.testing.assert_allclose(found.vectors, vectors, atol=1e-6)
        for number, text in enumerate(TEXTS):
            read = tokenizer(
                prompt + text, truncation=True, max_length=limit, return_special_tokens_mask=True,
                return_offsets_mapping=True, return_tensors="pt",
            )  # fmt: skip
            offsets, special = read.pop("offset_mapping")[0], read.pop("special_tokens_mask")[0]
            special = special | (read["input_ids"][0] == tokenizer.unk_token_id)
            with torch.inference_mode():
                (states,) = there(**read).last_hidden_state
            kept = (special == 0) & (offsets[:, 1] > len(prompt))
            expected = torch.nn.functional.normalize(states[kept], dim=1).numpy()
            ids = read["input_ids"][0][kept].tolist()
            close = 1e-5 if queries else 1e-3  # of documents, half precision
            np.testing.assert_allclose(found.tokens.vectors.row(number), expected, atol=close)
            pieces = found.tokens.pieces.row(number).tolist()
            assert pieces == (ids if queries else sorted(set(ids)))


def test_a_query_without_regular_tokens_has_none() -> None:
    found = encoder().with_tokens().encode_queries(["[SEP]", ""])
    assert [len(found.tokens.vectors.row(number)) for number in range(2)] == [0, 0]
    assert found.vectors.shape[0] == 2


def test_blocks_and_companies_give_the_same() -> None:
    both = encoder(pooling="mean").with_tokens()
    whole = both.encode_documents(DOCUMENTS)
    parts = [found for _, found in both.encode_blocks([DOCUMENTS[:2], DOCUMENTS[2:]])]
    assert all(isinstance(one, Both) for one in parts)
    starts = [0, 2]
    for first, part in zip(starts, parts, strict=True):
        for row in range(len(part)):
            one, two = part.tokens.vectors.row(row), whole.tokens.vectors.row(first + row)
            np.testing.assert_allclose(one, two, atol=1e-3)
            same = whole.tokens.pieces.row(first + row).tolist()
            assert part.tokens.pieces.row(row).tolist() == same


def test_integers_fill_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime", reason="the extra [onnx] is not installed")
    monkeypatch.setenv("ISTHMUS_CACHE", str(tmp_path / "cache"))
    plain = encoder(pooling="mean", similarity="cosine")
    exact = plain.with_tokens().encode_documents(DOCUMENTS)
    plain.int8 = Int8Model(plain)
    found = plain.with_tokens().encode_documents(DOCUMENTS)
    np.testing.assert_array_equal(found.vectors, plain.encode_documents(DOCUMENTS))
    assert found.tokens.pieces.values.tolist() == exact.tokens.pieces.values.tolist()
    one, two = (each.tokens.vectors.values.astype(float) for each in (found, exact))
    cosines = (one * two).sum(1) / np.linalg.norm(one, axis=1) / np.linalg.norm(two, axis=1)
    assert cosines.min() > 0.98
    assert not np.array_equal(one, two), "computed otherwise"
