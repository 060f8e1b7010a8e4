"""T5 encoders, as GTR is one, give the vectors of sentence-transformers; what they lack is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from tests.tiny_t5 import save_gtr
from transformers import T5EncoderModel, T5ForConditionalGeneration

from isthmus.encoders import load_encoder
from isthmus.errors import InputError
from isthmus.nn.backbone import Backbone
from isthmus.records import Document

WORDS = ["the", "quick", "brown", "fox", "jumps", "over", "lazy", "dog", "and"]
TEXTS = [
    "the quick brown fox", "dog", "jumps over the lazy dog and " * 20, "", "Wörter 日本",
    "fox brown quick the",
]  # fmt: skip
DOCUMENTS = [Document("", text) for text in TEXTS]


@pytest.fixture(scope="module")
def gtr(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, SentenceTransformer]:
    folder: Path = tmp_path_factory.mktemp("t5") / "gtr"
    return folder, save_gtr(folder, WORDS)


def close(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_vectors_are_those_of_sentence_transformers(gtr: Any, tmp_path: Path) -> None:
    folder, there = gtr
    expected = there.encode(TEXTS)
    here = load_encoder(str(folder), exact=True)
    assert (here.dimension, here.settings.document_max_length) == (12, 24)
    close(here.encode_queries(TEXTS), expected)
    close(here.encode_documents(DOCUMENTS), expected)
    assert np.abs(expected[0] - expected[5]).max() > 0.01, "the order of words counts"
    here.save(tmp_path)
    close(SentenceTransformer(str(tmp_path), device="cpu").encode(TEXTS), expected)
    again = load_encoder(str(tmp_path), exact=True)
    assert again.fingerprint == here.fingerprint
    with torch.no_grad():
        here.backbone.word_embeddings.zero_()
    here.restore(tmp_path)
    close(here.encode_queries(TEXTS), expected)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_both_kinds_of_attention_add_the_biases_of_positions(gtr: Any, attention: Any) -> None:
    folder, _ = gtr
    backbone = Backbone.load(str(folder), dropout=0.0, attention=attention).train()
    ids = torch.tensor([[5, 6, 7, 8, 9, 1], [9, 7, 1, 0, 0, 0]])
    there = T5EncoderModel.from_pretrained(folder, attn_implementation="eager")
    expected = there(input_ids=ids, attention_mask=ids != 0).last_hidden_state
    torch.testing.assert_close(backbone(ids, ids != 0)[ids != 0], expected[ids != 0])
    assert not backbone.leaves_padding_out


def test_longer_texts_than_any_table_of_positions(gtr: Any) -> None:
    folder, there = gtr
    there.max_seq_length = 700
    here = load_encoder(str(folder), {"document_max_length": 700}, exact=True)
    long = " ".join(WORDS * 60)
    close(here.encode_documents([Document("", long)]), there.encode([long]))
    there.max_seq_length = 24


def test_the_encoder_of_a_whole_t5(gtr: Any, tmp_path: Path) -> None:
    folder, _ = gtr
    config = T5EncoderModel.from_pretrained(folder).config
    config.is_encoder_decoder = True
    model = T5ForConditionalGeneration(config)
    model.save_pretrained(tmp_path)
    ids = torch.tensor([[5, 6, 7, 1]])
    expected = model.eval().encoder(ids).last_hidden_state
    found = Backbone.load(str(tmp_path)).eval()
    torch.testing.assert_close(found(ids, torch.ones_like(ids)), expected)
    assert not [name for name, _ in found.named_parameters() if "decoder" in name]


def test_sizes_beyond_the_weights_are_refused(gtr: Any, tmp_path: Path) -> None:
    folder, _ = gtr
    Backbone.load(str(folder)).save(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for key in ("d_model", "d_ff", "d_kv", "num_layers", "relative_attention_num_buckets"):
        (tmp_path / "config.json").write_text(json.dumps({**config, key: 1 << 28}))
        with pytest.raises(InputError, match="is damaged"):
            Backbone.load(str(tmp_path))
