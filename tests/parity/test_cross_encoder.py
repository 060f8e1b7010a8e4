"""Scores are those of sentence-transformers' CrossEncoder, in both directions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentence_transformers
import torch
from tokenizers import processors
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    PreTrainedTokenizerFast,
)

from isthmus.encoders.cross import CrossEncoder, CrossSettings
from isthmus.encoders.loader import load_reranker
from isthmus.nn.classifier import load_classifier
from isthmus.records import Document
from isthmus.text.tokenizer import Tokenizer, new_tokenizer

WORDS = "the quick brown fox jumps over the lazy dog and"
LONG = " ".join([WORDS] * 6)
PAIRS = [
    ("the quick fox", "lazy dog"),
    ("dog", LONG),  # the document is cut
    ("", "fox"),
    ("fox", ""),
    (WORDS, WORDS),
    ("the", "Unknown Wörter 日本"),
]
SIZES: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 80,
    "pad_token_id": 0,
    "initializer_range": 0.3,
}
MODELS: dict[str, dict[str, Any]] = {
    "bert": SIZES,
    "distilbert": {
        "dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24, "max_position_embeddings": 80,
        "pad_token_id": 0, "initializer_range": 0.3,
    },
    "roberta": {**SIZES, "type_vocab_size": 1},
    "electra": {**SIZES, "embedding_size": 12},
    "modernbert": {**SIZES, "global_attn_every_n_layers": 2, "local_attention": 8},
    "deberta-v2": {
        **SIZES, "type_vocab_size": 0, "relative_attention": True, "position_buckets": 8,
        "pos_att_type": ["p2c", "c2p"],
    },
    "qwen3": {**SIZES, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8},
}  # fmt: skip
architecture = pytest.mark.parametrize("kind", MODELS)


def tokenizer(kind: str) -> Tokenizer:
    """As the kind's own: two separators in the middle, segments given out or not."""
    backend = new_tokenizer([WORDS] * 2, 90).backend
    names = ["input_ids", "attention_mask"]
    if kind in ("bert", "electra"):
        names.append("token_type_ids")
    if kind == "roberta":
        backend.post_processor = processors.RobertaProcessing(("[SEP]", 3), ("[CLS]", 2))
    special = {f"{name.lower()}_token": f"[{name}]" for name in ("PAD", "CLS", "SEP", "UNK")}
    return Tokenizer(
        PreTrainedTokenizerFast(tokenizer_object=backend, model_input_names=names, **special)
    )


def saved(kind: str, folder: Path) -> str:
    """A plain sequence classifier as any library leaves it."""
    torch.manual_seed(3)
    reader = tokenizer(kind)
    config = AutoConfig.for_model(kind, **MODELS[kind], vocab_size=len(reader), num_labels=1)
    model = AutoModelForSequenceClassification.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():  # biases and norms that matter
            parameter += 0.1 * torch.randn_like(parameter)
    model.save_pretrained(folder)
    reader.pretrained.model_max_length = 40
    reader.save(folder)
    return str(folder)


def opened(folder: str, **settings: int) -> CrossEncoder:
    """In float32, whatever the chip is fast in."""
    chosen = CrossSettings(**settings) if settings else load_reranker(folder).settings
    return CrossEncoder(load_classifier(folder), Tokenizer.load(folder), chosen)


def scored(encoder: CrossEncoder, pairs: list[tuple[str, str]]) -> np.ndarray:
    return encoder.score([(query, Document("", text)) for query, text in pairs])


@architecture
def test_a_classifier_gives_the_same_scores_here(kind: str, tmp_path: Path) -> None:
    folder = saved(kind, tmp_path)
    there = sentence_transformers.CrossEncoder(folder, device="cpu")
    encoder = opened(folder)
    assert (encoder.settings.query_max_length, encoder.settings.document_max_length) == (20, 20)
    pairs = [*PAIRS, (LONG, "fox"), (LONG, LONG)]  # a long query beside a short text is kept
    expected = there.predict(pairs, activation_fn=torch.nn.Identity())
    assert np.ptp(expected) > 0.1
    np.testing.assert_allclose(scored(encoder, pairs), expected, atol=1e-5)


@architecture
def test_a_model_saved_here_gives_the_same_scores_there(kind: str, tmp_path: Path) -> None:
    encoder = opened(saved(kind, tmp_path / "plain"), query_max_length=16, document_max_length=30)
    encoder.save(tmp_path / "ours")
    there = sentence_transformers.CrossEncoder(str(tmp_path / "ours"), device="cpu")
    assert there.max_seq_length == 46
    expected = scored(encoder, PAIRS)
    np.testing.assert_allclose(there.predict(PAIRS), expected, atol=1e-5)
    again = opened(str(tmp_path / "ours"))
    assert again.settings == encoder.settings
    assert again.fingerprint == encoder.fingerprint
    np.testing.assert_array_equal(scored(again, PAIRS), expected)


def test_a_model_saved_there_gives_the_same_scores_here(tmp_path: Path) -> None:
    """Version 6 lists modules, which version 5 did not."""
    there = sentence_transformers.CrossEncoder(saved("bert", tmp_path / "plain"), device="cpu")
    there.save(str(tmp_path / "theirs"))
    assert (tmp_path / "theirs" / "modules.json").is_file()
    expected = there.predict(PAIRS, activation_fn=torch.nn.Identity())
    np.testing.assert_allclose(scored(opened(str(tmp_path / "theirs")), PAIRS), expected, atol=1e-5)


@architecture
def test_pairs_are_put_together_as_the_tokenizer_does(kind: str, tmp_path: Path) -> None:
    reader = Tokenizer.load(saved(kind, tmp_path))
    encoder = opened(str(tmp_path))
    for query, text in PAIRS[:1] + PAIRS[2:4]:
        expected = reader.pretrained([query], [text])
        sides = encoder.tokens([query]), encoder.tokens([text])
        (ids,), _, (segments,) = encoder.pairing.pad(*sides)
        assert ids.tolist() == expected["input_ids"][0]
        assert segments.tolist() == expected.get("token_type_ids", [[0] * len(ids)])[0]
    if kind == "bert":
        assert segments.tolist() == [0, 0, 0, 1], "[CLS] fox [SEP], nothing, [SEP]"
