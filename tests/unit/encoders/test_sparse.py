"""A sparse encoder is what is stored beside it; what cannot be one is refused with a reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import BertConfig, BertModel

from isthmus.encoders import load_encoder, load_query_encoder
from isthmus.encoders.dense import DenseEncoder, DenseSettings
from isthmus.encoders.model_settings import known_settings
from isthmus.encoders.sparse import QuerySide, SparseEncoder, SparseSettings
from isthmus.errors import InputError, IsthmusError, MismatchError
from isthmus.nn.backbone import Backbone, new_backbone
from isthmus.records import Document
from isthmus.text.tokenizer import new_tokenizer

TOKENIZER = new_tokenizer(["the quick brown fox jumps over the lazy dog"] * 2, 80)
TEXTS = ["the fox", "a lazy dog jumps", ""]


def encoder(seed: int = 0, **settings: Any) -> SparseEncoder:
    backbone = new_backbone("tiny", 90, TOKENIZER.pad_id, max_length=144, seed=seed)
    return SparseEncoder(backbone, TOKENIZER, SparseSettings.parse(settings, "test"))


def with_terms(seed: int = 0) -> SparseEncoder:
    made = encoder(query="terms")
    assert made.query_terms is not None
    with torch.no_grad():
        made.query_terms.theta.normal_(generator=torch.Generator().manual_seed(seed))
    return made


def test_saving_and_loading_is_the_identity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)  # both of one device
    saved = with_terms()
    saved.save(tmp_path)
    assert json.loads((tmp_path / "encoder.json").read_text())["kind"] == "sparse"
    loaded = load_encoder(str(tmp_path))
    assert isinstance(loaded, SparseEncoder)
    assert loaded.settings == saved.settings
    assert loaded.fingerprint == saved.fingerprint
    difference = loaded.encode_queries(TEXTS) - saved.encode_queries(TEXTS)
    assert abs(difference).max() == 0, "no transformer, so no rounding"
    documents = [Document("", text) for text in TEXTS]
    difference = loaded.encode_documents(documents) - saved.encode_documents(documents)
    assert abs(difference).max() < 0.05, "bf16 where the chip is fast in it"
    again = encoder(seed=1, query="terms")
    again.restore(tmp_path)
    assert again.fingerprint == saved.fingerprint


def test_queries_need_no_transformer_where_none_reads_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)  # both of one device
    saved = with_terms()
    _ = saved.fingerprint  # of other weights than those that are saved
    with torch.no_grad():
        saved.backbone.model.cls.predictions.bias[7] += 1.0
    saved.backbone.to(torch.bfloat16)
    saved.save(tmp_path)
    full = load_encoder(str(tmp_path))
    (tmp_path / "model.safetensors").rename(tmp_path / "elsewhere")
    side = load_query_encoder(str(tmp_path), full.fingerprint)
    assert isinstance(side, QuerySide)
    assert (side.name, side.fingerprint) == (full.name, full.fingerprint)
    assert abs(side.encode_queries(TEXTS) - full.encode_queries(TEXTS)).max() == 0
    assert [side.has_tokens(text) for text in TEXTS] == [True, True, False]
    with pytest.raises(InputError, match=r"has no model\.safetensors"):
        load_encoder(str(tmp_path))


@pytest.mark.parametrize("change", ["weights", "terms", "settings", "note", "kind"])
def test_a_query_side_that_is_not_the_index_s_loads_everything(change: str, tmp_path: Path) -> None:
    """Whoever compares fingerprints then says what is wrong."""
    saved = with_terms()
    saved.save(tmp_path)
    wanted = saved.fingerprint
    file = tmp_path / "query_terms.safetensors"
    settings = json.loads((tmp_path / "encoder.json").read_text())
    if change == "weights":
        wanted = encoder(seed=1, query="terms").fingerprint
    elif change in ("terms", "note"):  # a note of other terms; a file of an older version
        theta = load_file(file)
        with safe_open(file, "pt") as opened:
            note = opened.metadata() if change == "terms" else None
        save_file({"terms": theta["terms"] + (change == "terms")}, file, note)
    elif change == "settings":
        settings["query_max_length"] = 7
    else:
        settings["query"] = "encoder"
    (tmp_path / "encoder.json").write_text(json.dumps(settings))
    found = load_query_encoder(str(tmp_path), wanted)
    assert isinstance(found, SparseEncoder)
    assert (found.fingerprint == saved.fingerprint) == (change in ("weights", "note"))


@pytest.mark.parametrize(
    "form", [{}, {"form": "lexmae"}, {"pooling_strategy": "sum", "activation": "log1p_relu"}]
)
def test_a_lower_bias_leaves_fewer_terms_and_masked_lm_as_it_was(form: dict[str, Any]) -> None:
    made = encoder(**form)
    documents = [Document("", text) for text in ("the quick brown fox", "a lazy dog jumps", "dog")]
    rows = made.tokenise(documents)
    states = torch.randn(5, 128, generator=torch.Generator().manual_seed(0))
    probabilities = made.backbone.head(states).softmax(-1)
    had = np.diff(made.encode_documents(documents).indptr)
    before, lowered = made.lower_bias(rows, 7)
    assert before == pytest.approx(had.mean())
    assert lowered > 0
    assert np.diff(made.encode_documents(documents).indptr).sum() == 3 * 7
    torch.testing.assert_close(made.backbone.head(states).softmax(-1), probabilities)
    assert made.lower_bias(rows, 7) == (7, 0.0), "few enough"
    assert all(parameter.requires_grad for parameter in made.backbone.parameters())


def test_settings_given_replace_those_stored_and_choose_the_kind(tmp_path: Path) -> None:
    encoder().save(tmp_path)
    assert isinstance(load_encoder(str(tmp_path), DenseSettings(pooling="mean")), DenseEncoder)
    loaded = load_encoder(str(tmp_path), SparseSettings(form="lexmae"))
    assert isinstance(loaded, SparseEncoder)
    assert loaded.settings.form == "lexmae"


def test_dense_encoders_that_do_not_say_their_kind(tmp_path: Path) -> None:
    DenseEncoder(new_backbone("tiny", 90, 0), TOKENIZER, DenseSettings(pooling="mean")).save(
        tmp_path
    )
    stored = json.loads((tmp_path / "encoder.json").read_text())
    assert stored.pop("kind") == "dense"
    (tmp_path / "encoder.json").write_text(json.dumps(stored))
    assert known_settings(str(tmp_path)) == DenseSettings(pooling="mean")


def test_the_fingerprint_sees_weights_head_terms_and_every_setting() -> None:
    biased = encoder()
    with torch.no_grad():
        biased.backbone.model.cls.predictions.bias[7] += 1e-6
    variants = [
        encoder(),
        encoder(seed=1),
        biased,
        encoder(form="lexmae"),
        encoder(query="terms"),
        with_terms(0),
        with_terms(1),
        encoder(query_terms=5),
        encoder(document_terms=5),
        encoder(query_max_length=32),
        encoder(document_max_length=100),
        encoder(titles=False),
    ]
    assert len({variant.fingerprint for variant in variants}) == len(variants)
    assert encoder().fingerprint == variants[0].fingerprint


def test_queries_and_documents_keep_their_own_number_of_terms() -> None:
    cut, whole = encoder(query_terms=3, document_terms=7), encoder()
    documents = [Document("", text) for text in TEXTS]
    for found, every, kept in (
        (cut.encode_queries(TEXTS), whole.encode_queries(TEXTS), 3),
        (cut.encode_documents(documents), whole.encode_documents(documents), 7),
    ):
        assert np.diff(found.indptr).tolist() == [kept] * 3
        for one, all_of_it in zip(found, every, strict=True):
            assert sorted(one.data) == pytest.approx(sorted(all_of_it.data)[-kept:], rel=1e-5)


def test_terms_are_named_highest_first() -> None:
    made = with_terms()
    assert made.query_terms is not None
    weights = made.query_terms.weights().tolist()
    found = made.terms(made.encode_queries(["the fox the dog"]))
    tokens = {made.tokenizer.pretrained.convert_tokens_to_ids(token): weight
              for token, weight in found}  # fmt: skip
    ids = set(TOKENIZER.encode(["the fox the dog"], 64)[0]) - set(TOKENIZER.special_ids.tolist())
    assert tokens == pytest.approx({term: weights[term] for term in ids})
    assert [weight for _, weight in found] == sorted((w for _, w in found), reverse=True)
    assert made.terms(made.encode_queries([""])) == []
    every = made.terms(made.encode_documents([Document("", "the fox")]))
    padding = {f"[{term}]" for term in range(len(TOKENIZER), 90)}
    assert padding & {token for token, _ in every}, "rows beyond the tokenizer have no name"


def test_a_model_without_a_head(tmp_path: Path) -> None:
    config = BertConfig(
        vocab_size=90, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=144,
    )  # fmt: skip
    BertModel(config).save_pretrained(tmp_path)
    backbone = Backbone.load(str(tmp_path))
    with pytest.raises(InputError, match="has no masked-LM head") as caught:
        SparseEncoder(backbone, TOKENIZER, SparseSettings(), "some/model")
    assert "some/model" in caught.value.what
    assert "isthmus pretrain" in caught.value.fix


@pytest.mark.parametrize(
    ("content", "kind", "what"),
    [
        (None, InputError, "cannot be read"),
        (b"not safetensors", InputError, "cannot be read"),
        ({"terms": torch.ones(12)}, MismatchError, "for 12 query terms, the model has 90"),
        ({"other": torch.ones(90)}, MismatchError, "for 0 query terms"),
        ({"terms": torch.ones(9, 10)}, InputError, "no vector of finite numbers"),
        ({"terms": torch.ones(())}, InputError, "no vector of finite numbers"),
        ({"terms": torch.full((90,), torch.nan)}, InputError, "no vector of finite numbers"),
    ],
)
def test_stored_query_terms_that_do_not_fit(
    content: Any, kind: type[IsthmusError], what: str, tmp_path: Path
) -> None:
    with_terms().save(tmp_path)
    file = tmp_path / "query_terms.safetensors"
    file.unlink()
    if isinstance(content, bytes):
        file.write_bytes(content)
    elif content is not None:
        save_file(content, file)
    with pytest.raises(kind, match=what) as caught:
        load_encoder(str(tmp_path))
    assert str(file) in caught.value.what
    if content is not None:
        with pytest.raises(IsthmusError):
            load_query_encoder(str(tmp_path), "any")


@pytest.mark.parametrize(
    "pooling",
    [
        {"pooling_strategy": "mean", "activation_function": "relu"},
        {"pooling_strategy": "max", "activation_function": "gelu"},
    ],
)
def test_term_weights_nobody_here_computes(pooling: dict[str, Any], tmp_path: Path) -> None:
    encoder().save(tmp_path)
    (tmp_path / "encoder.json").unlink()
    assert known_settings(str(tmp_path)) is not None
    (tmp_path / "1_SpladePooling" / "config.json").write_text(json.dumps(pooling))
    with pytest.raises(InputError, match="pools terms by") as caught:
        known_settings(str(tmp_path))
    assert "1_SpladePooling/config.json" in caught.value.what


def test_sparse_modules_of_another_order(tmp_path: Path) -> None:
    encoder().save(tmp_path)
    (tmp_path / "encoder.json").unlink()
    modules = json.loads((tmp_path / "modules.json").read_text())
    more = {"type": "sentence_transformers.models.Normalize", "path": "2_Normalize"}
    (tmp_path / "modules.json").write_text(json.dumps([*modules, more]))
    with pytest.raises(InputError, match="MLMTransformer, SpladePooling, Normalize"):
        known_settings(str(tmp_path))
