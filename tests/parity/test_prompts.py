"""Prompts and poolings are those of sentence-transformers, in both directions."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers import SparseEncoder as TheirSparseEncoder
from tests.factories import bert
from transformers import BertForMaskedLM

from isthmus.config.encoding import Pooling
from isthmus.encoders import DenseEncoder, SparseEncoder, load_encoder
from isthmus.encoders.dense import DenseSettings
from isthmus.encoders.sparse import SparseSettings
from isthmus.nn.backbone import Backbone
from isthmus.records import Document
from isthmus.text.tokenizer import new_tokenizer

TEXTS = ["the quick brown fox", "dog", "jumps over the lazy dog and " * 20, "", "Wörter 日本"]
DOCUMENTS = [Document("", text) for text in TEXTS]
PROMPTS = {"query": "query: ", "document": "passage: "}
E5 = {"query": "query: ", "passage": "passage: "}
LENGTHS = {"query_max_length": 24, "document_max_length": 24}
TOKENIZER = new_tokenizer(
    ["query: the quick brown fox passage: jumps over the lazy dog and"] * 2, 90
)


def backbone() -> Backbone:
    torch.manual_seed(0)
    return Backbone(BertForMaskedLM(bert(len(TOKENIZER))))


def dense(**settings: Any) -> DenseEncoder:
    return DenseEncoder(backbone(), TOKENIZER, DenseSettings(**LENGTHS, **settings))


def saved_there(folder: Path, prompts: dict[str, str], default: str | None = None) -> Any:
    """A mean, cosine model with prompts in E5's layout, as sentence-transformers saves it."""
    dense(pooling="mean", similarity="cosine").save(folder / "ours")
    there = SentenceTransformer(str(folder / "ours"), device="cpu")
    there.prompts, there.default_prompt_name = prompts, default
    there.save(str(folder / "theirs"), create_model_card=False)
    return SentenceTransformer(str(folder / "theirs"), device="cpu")


def close(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("prompts", [PROMPTS, E5])
def test_a_model_of_e5s_layout_reads_its_prompts(prompts: dict[str, str], tmp_path: Path) -> None:
    there = saved_there(tmp_path, prompts)
    here = load_encoder(str(tmp_path / "theirs"), exact=True)
    assert here.settings.prompts() == ("query: ", "passage: ")
    close(here.encode_queries(TEXTS), there.encode_query(TEXTS))
    close(here.encode_documents(DOCUMENTS), there.encode(TEXTS, prompt="passage: "))
    ((_, blocks),) = here.encode_blocks([DOCUMENTS])
    close(blocks, here.encode_documents(DOCUMENTS))
    assert np.abs(here.encode_queries(TEXTS) - there.encode(TEXTS)).max() > 0.01
    # Saved here, both sides have a name that encode_query and encode_document go by.
    here.save(tmp_path / "again")
    again = SentenceTransformer(str(tmp_path / "again"), device="cpu")
    close(again.encode_query(TEXTS), here.encode_queries(TEXTS))
    close(again.encode_document(TEXTS), here.encode_documents(DOCUMENTS))


def test_a_default_prompt_without_sides_is_that_of_both(tmp_path: Path) -> None:
    there = saved_there(tmp_path, {"clustering": "cluster: ", "any": "the: "}, "any")
    here = load_encoder(str(tmp_path / "theirs"), exact=True)
    close(here.encode_queries(TEXTS), there.encode(TEXTS))
    close(here.encode_documents(DOCUMENTS), there.encode(TEXTS))


def test_prompts_of_tasks_are_not_guessed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there = saved_there(tmp_path, {"clustering": "cluster: ", "sts": "same: "})
    here = load_encoder(str(tmp_path / "theirs"), exact=True)
    assert "for tasks (clustering, sts), and none is used" in " ".join(
        capsys.readouterr().err.split()
    )
    close(here.encode_queries(TEXTS), there.encode(TEXTS))
    chosen = load_encoder(str(tmp_path / "theirs"), {"query_prompt": "same: "}, exact=True)
    close(chosen.encode_queries(TEXTS), there.encode(TEXTS, prompt_name="sts"))
    close(chosen.encode_documents(DOCUMENTS), there.encode(TEXTS))


@pytest.mark.parametrize("include_prompt", [True, False])
@pytest.mark.parametrize("pooling", get_args(Pooling))
def test_every_pooling_with_and_without_the_prompt(
    pooling: Any, include_prompt: bool, tmp_path: Path
) -> None:
    prompts = {"query_prompt": "the brown: ", "document_prompt": "fox and "}
    here = dense(pooling=pooling, include_prompt=include_prompt, **prompts)
    here.save(tmp_path)
    there = SentenceTransformer(str(tmp_path), device="cpu")
    there.save(str(tmp_path / "theirs"), create_model_card=False)
    back = load_encoder(str(tmp_path / "theirs"), exact=True)
    assert (back.settings, back.fingerprint) == (here.settings, here.fingerprint)
    for one in (here, back):
        close(one.encode_queries(TEXTS), there.encode_query(TEXTS))
        close(one.encode_documents(DOCUMENTS), there.encode_document(TEXTS))


def test_sparse_encoders_have_prompts_too(tmp_path: Path) -> None:
    prompts = {"query_prompt": "query: ", "document_prompt": "passage: "}
    here = SparseEncoder(backbone(), TOKENIZER, SparseSettings(**LENGTHS, **prompts))
    here.save(tmp_path)
    there = TheirSparseEncoder(str(tmp_path), device="cpu")
    assert there.prompts == PROMPTS
    there.save_pretrained(str(tmp_path / "theirs"), create_model_card=False)
    back = load_encoder(str(tmp_path / "theirs"), exact=True)
    assert back.fingerprint == here.fingerprint
    expected = there.encode_query(TEXTS, convert_to_sparse_tensor=False).numpy()
    close(back.encode_queries(TEXTS).toarray(), expected)
    expected = there.encode_document(TEXTS, convert_to_sparse_tensor=False).numpy()
    close(back.encode_documents(DOCUMENTS).toarray(), expected)
    plain = there.encode(TEXTS, convert_to_sparse_tensor=False).numpy()
    assert np.abs(expected - plain).max() > 0.01
