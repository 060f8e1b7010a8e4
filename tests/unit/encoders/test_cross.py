"""A cross-encoder: what it refuses, how it cuts, and that a score is its pair's alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.factories import bert
from transformers import BertForSequenceClassification

from isthmus.encoders.cross import CrossEncoder, CrossSettings
from isthmus.encoders.dense import DenseEncoder, DenseSettings
from isthmus.encoders.loader import load_encoder, load_reranker
from isthmus.errors import InputError, SettingsError
from isthmus.nn.backbone import new_backbone
from isthmus.nn.classifier import load_classifier
from isthmus.records import Document
from isthmus.text.tokenizer import Tokenizer, new_tokenizer

TOKENIZER = new_tokenizer(["the quick brown fox jumps over the lazy dog"] * 2, 80)
PAIRS = [
    ("the fox", Document("a", "a lazy dog jumps", "quick")),
    ("dog", Document("b", "fox " * 40)),
    ("the quick brown fox", Document("c", "")),
    ("dog", Document("a", "a lazy dog jumps", "quick")),
]


def saved(folder: Path, labels: int = 1, seed: int = 0) -> str:
    torch.manual_seed(seed)
    config = bert(len(TOKENIZER), num_labels=labels)  # with dropout: scoring must switch it off
    BertForSequenceClassification(config).save_pretrained(folder)
    TOKENIZER.save(folder)
    return str(folder)


def cross(folder: Path, seed: int = 0, **settings: Any) -> CrossEncoder:
    settings = {"query_max_length": 16, "document_max_length": 32, **settings}
    backbone = load_classifier(saved(folder, seed=seed))
    return CrossEncoder(backbone, TOKENIZER, CrossSettings.parse(settings, "test"))


def test_scores_of_texts_and_of_tokens_in_their_order(tmp_path: Path) -> None:
    encoder = cross(tmp_path)
    encoder.backbone.train()
    scores = encoder.score(PAIRS)
    assert scores.dtype == np.float32
    assert len(set(scores.tolist())) == len(PAIRS)
    alone = [encoder.score([pair])[0] for pair in PAIRS]
    np.testing.assert_allclose(scores, alone, atol=1e-5)
    queries = encoder.tokens([query for query, _ in PAIRS])
    documents = [np.array(row) for row in encoder.tokens([d.contents() for _, d in PAIRS])]
    np.testing.assert_array_equal(encoder.score_tokens(queries, documents), scores)
    assert encoder.backbone.training, "as it was"
    assert encoder.score([]).shape == (0,)
    assert encoder.score_tokens([], []).shape == (0,)


def test_a_score_is_the_logit_of_the_pair(tmp_path: Path) -> None:
    encoder = cross(tmp_path)
    encoder.backbone.eval()
    ids, mask, segments = encoder.pairing.pad(encoder.tokens(["fox"]), encoder.tokens(["dog the"]))
    expected = encoder.model(input_ids=ids, token_type_ids=segments, attention_mask=mask).logits
    represented = encoder.represent(ids, mask, segments)
    assert represented.tolist() == expected[:, 0].tolist()
    represented.sum().backward()
    assert all(parameter.grad is not None for parameter in encoder.model.parameters())
    assert encoder.score([("fox", Document("", "dog the"))])[0] == pytest.approx(
        represented.item(), abs=1e-6
    )


def test_a_pair_is_cut_only_when_it_does_not_fit(tmp_path: Path) -> None:
    encoder = cross(tmp_path, query_max_length=8, document_max_length=12)  # 17 between specials

    def kept(query: int, document: int) -> tuple[int, int]:
        (ids,), *_ = encoder.pairing.pad([[5] * query], [np.full(document, 6)])
        assert len(ids) <= 20
        return int((ids == 5).sum()), int((ids == 6).sum())

    assert kept(3, 14) == (3, 14), "the document may use what the query leaves"
    assert kept(3, 15) == (3, 14)
    assert kept(15, 2) == (15, 2), "and the query what the document leaves"
    assert kept(20, 2) == (15, 2)
    assert kept(20, 30) == (6, 11), "8 and 12 of tokens alone, less their special ones"
    assert kept(0, 30) == (0, 17)


def test_saving_restoring_and_the_fingerprint(tmp_path: Path) -> None:
    encoder, other = cross(tmp_path / "one"), cross(tmp_path / "two", seed=1)
    variants = [encoder, other, cross(tmp_path / "one", titles=False)]
    variants.append(cross(tmp_path / "one", document_max_length=30))
    assert len({variant.fingerprint for variant in variants}) == len(variants)
    encoder.save(tmp_path / "kept")
    stored = json.loads((tmp_path / "kept" / "encoder.json").read_text())
    assert stored["kind"] == "cross"
    other.restore(tmp_path / "kept")
    np.testing.assert_array_equal(other.score(PAIRS), encoder.score(PAIRS))
    loaded = load_reranker(str(tmp_path / "kept"))
    assert loaded.fingerprint == encoder.fingerprint, "of the weights as stored"
    assert loaded.settings == encoder.settings
    assert loaded.name == str(tmp_path / "kept")
    assert np.abs(loaded.score(PAIRS) - encoder.score(PAIRS)).max() < 0.05
    shorter = CrossSettings(query_max_length=4, document_max_length=4)
    assert load_reranker(str(tmp_path / "kept"), shorter).settings == shorter


def test_low_precision_makes_no_ties(tmp_path: Path) -> None:
    encoder = cross(tmp_path)
    classifier = encoder.model.classifier
    with torch.no_grad():
        classifier.weight *= 0.1
        classifier.bias += 7.0
    encoder.backbone.to(torch.bfloat16)
    words = ["the", "quick", "brown", "fox", "jumps", "over", "lazy", "dog"]
    pairs = [(one, Document("", two)) for one in words for two in words]
    scores = encoder.score(pairs)
    assert np.abs(scores - 7).max() < 1
    assert len(set(scores.tolist())) > 55, "multiples of 1/32 would tie"
    encoder.backbone.to(torch.float32)
    ids, mask, segments = encoder.pairing.pad(encoder.tokens(words), encoder.tokens(words[::-1]))
    with torch.autocast("cpu", torch.bfloat16):  # as when training in mixed precision
        trained = encoder.represent(ids, mask, segments)
    assert trained.dtype == torch.float32
    assert len(set(trained.tolist())) == len(words)


def test_a_fresh_classifier_is_drawn_by_its_seed(tmp_path: Path) -> None:
    bare = DenseEncoder(
        new_backbone("tiny", 90, TOKENIZER.pad_id, max_length=144, seed=0), TOKENIZER,
        DenseSettings(),
    )  # fmt: skip
    bare.save(tmp_path)
    name = str(tmp_path)
    one, again, other = (load_classifier(name, "add", seed=seed) for seed in (1, 1, 2))
    weights = [backbone.model.classifier.weight for backbone in (one, again, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    kept = bare.backbone.encoder.state_dict()
    found = one.encoder.state_dict()
    assert all(torch.equal(found[key], value) for key, value in kept.items())
    with pytest.raises(InputError) as caught:
        load_reranker(name)
    assert "it has no classifier" in caught.value.what
    assert "encoder=cross" in caught.value.fix


def test_another_label_count_is_refused(tmp_path: Path) -> None:
    folder = saved(tmp_path, labels=3)
    for load in (load_reranker, lambda name: load_classifier(name, "add")):
        with pytest.raises(InputError) as caught:
            load(folder)
        assert "this model 3" in caught.value.what
        assert "config.json" in caught.value.what
        assert "choose a re-ranker with one label" in caught.value.fix


def test_a_cross_encoder_gives_no_vectors(tmp_path: Path) -> None:
    cross(tmp_path / "plain").save(tmp_path / "kept")
    with pytest.raises(InputError) as caught:
        load_encoder(str(tmp_path / "kept"))
    assert "is a cross-encoder" in caught.value.what
    assert "--rerank" in caught.value.fix


def test_more_than_the_model_has_positions_for(tmp_path: Path) -> None:
    folder = saved(tmp_path)
    with pytest.raises(SettingsError) as caught:
        CrossEncoder(
            load_classifier(folder),
            Tokenizer.load(folder),
            CrossSettings(query_max_length=20, document_max_length=45),
        )
    assert "= 65" in caught.value.what
    assert "at most 64 tokens" in caught.value.what
    assert caught.value.fix == "--set document_max_length=44"
