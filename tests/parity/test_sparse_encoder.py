"""Sparse vectors are those of sentence-transformers' SparseEncoder, in both directions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from sentence_transformers import SparseEncoder as TheirEncoder
from transformers import (
    AutoModelForMaskedLM,
    BertConfig,
    DistilBertConfig,
    ModernBertConfig,
    RobertaConfig,
)

from isthmus.encoders.loader import load_encoder
from isthmus.encoders.model_settings import stored_settings
from isthmus.encoders.sparse import SparseEncoder, SparseSettings
from isthmus.errors import InputError
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
TOKENIZER = new_tokenizer(["the quick brown fox jumps over the lazy dog and"] * 2, 90)
SHAPE = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32,
    "max_position_embeddings": 64, "initializer_range": 0.3, "pad_token_id": TOKENIZER.pad_id,
    "vocab_size": len(TOKENIZER) + 3,
}  # fmt: skip
CONFIGS = {
    "bert": lambda: BertConfig(**SHAPE),
    "distilbert": lambda: DistilBertConfig(
        vocab_size=SHAPE["vocab_size"], dim=16, n_layers=2, n_heads=2, hidden_dim=32,
        max_position_embeddings=64, initializer_range=0.3, pad_token_id=TOKENIZER.pad_id,
    ),
    "roberta": lambda: RobertaConfig(**SHAPE),
    "modernbert": lambda: ModernBertConfig(
        **SHAPE, cls_token_id=2, sep_token_id=3, bos_token_id=2, eos_token_id=3,
    ),
}  # fmt: skip


def made(architecture: str = "bert", vocabulary: int | None = None, **settings: Any) -> Any:
    torch.manual_seed(0)
    chosen = {"query_max_length": 24, "document_max_length": 24, **settings}
    model = AutoModelForMaskedLM.from_config(CONFIGS[architecture]())
    if vocabulary is not None:
        model.resize_token_embeddings(vocabulary)
    return SparseEncoder(Backbone(model), TOKENIZER, SparseSettings.parse(chosen, "test"))


def theirs(folder: Path) -> TheirEncoder:
    return TheirEncoder(str(folder), device="cpu")


def dense(encoder: TheirEncoder) -> Any:
    return encoder.encode(TEXTS, convert_to_sparse_tensor=False).cpu().numpy()


@pytest.mark.parametrize("architecture", CONFIGS)
def test_a_saved_encoder_gives_the_same_vectors_there(architecture: str, tmp_path: Path) -> None:
    encoder = made(architecture)
    encoder.save(tmp_path)
    there = theirs(tmp_path)
    assert there.max_seq_length == 24
    expected = encoder.encode_documents([Document("", text) for text in TEXTS]).toarray()
    assert (expected > 0).any(axis=1).all()
    np.testing.assert_allclose(dense(there), expected, atol=1e-5)
    assert there.similarity_fn_name == "dot"


@pytest.mark.parametrize("terms", [None, 7])
def test_a_model_saved_there_gives_the_same_vectors_here(terms: int | None, tmp_path: Path) -> None:
    made(query_terms=terms, document_terms=terms).save(tmp_path / "ours")
    there = theirs(tmp_path / "ours")
    there.save_pretrained(str(tmp_path / "theirs"), create_model_card=False)
    folder = str(tmp_path / "theirs")
    settings = stored_settings(folder).settings
    assert isinstance(settings, SparseSettings)
    assert (settings.form, settings.query) == ("splade", "encoder")
    assert (settings.query_max_length, settings.document_max_length) == (24, 24)
    assert settings.query_terms == settings.document_terms == terms
    encoder = SparseEncoder(Backbone.load(folder), Tokenizer.load(folder), settings)
    found = encoder.encode_queries(TEXTS)
    np.testing.assert_allclose(found.toarray(), dense(there), atol=1e-5)
    assert np.diff(found.indptr).max() == 7 or terms is None
    loaded = load_encoder(folder)
    assert isinstance(loaded, SparseEncoder)
    assert loaded.fingerprint == encoder.fingerprint


@pytest.mark.parametrize("activation", ["relu", "log1p_relu"])
def test_weights_that_are_summed_over_positions(activation: str, tmp_path: Path) -> None:
    encoder = made(pooling_strategy="sum", activation=activation)
    encoder.save(tmp_path / "ours")
    there = theirs(tmp_path / "ours")
    assert there[1].pooling_strategy == "sum"
    expected = dense(there)
    found = encoder.encode_documents([Document("", text) for text in TEXTS]).toarray()
    np.testing.assert_allclose(found, expected, atol=1e-5)
    largest = made(activation=activation).encode_queries(TEXTS).toarray()
    assert np.abs(found - largest).max() > 1, "something else than the largest"
    there.save_pretrained(str(tmp_path / "theirs"), create_model_card=False)
    back = load_encoder(str(tmp_path / "theirs"), exact=True)
    assert back.fingerprint == encoder.fingerprint
    np.testing.assert_allclose(back.encode_queries(TEXTS).toarray(), expected, atol=1e-5)


def test_only_class_paths_that_versions_5_and_6_share(tmp_path: Path) -> None:
    made().save(tmp_path)
    modules = json.loads((tmp_path / "modules.json").read_text())
    assert [module["type"] for module in modules] == [
        "sentence_transformers.sparse_encoder.models.MLMTransformer",
        "sentence_transformers.sparse_encoder.models.SpladePooling",
    ]
    assert [module["path"] for module in modules] == ["", "1_SpladePooling"]
    pooling = json.loads((tmp_path / "1_SpladePooling" / "config.json").read_text())
    assert pooling == {
        "pooling_strategy": "max",
        "activation_function": "relu",
        "word_embedding_dimension": len(TOKENIZER) + 3,
    }


@pytest.mark.parametrize("terms", [None, 2])
@pytest.mark.parametrize("architecture", CONFIGS)
def test_learned_query_terms_are_the_same_there(
    architecture: str, terms: int | None, tmp_path: Path
) -> None:
    kept = {"query_terms": terms, "document_terms": terms}
    encoder = made(architecture, len(TOKENIZER), query="terms", query_max_length=8, **kept)
    with torch.no_grad():
        encoder.query_terms.theta.normal_(0.0, 0.05)
    encoder.save(tmp_path)
    there = theirs(tmp_path)
    long = "the quick brown fox jumps over lazy dog and"  # no word twice: where it is cut matters
    texts = [*TEXTS, f"the [SEP] fox [CLS] the [PAD] over [UNK] {long}", long]
    expected = encoder.encode_queries(texts).toarray()
    assert (expected > 0).any(axis=1).tolist() == [bool(text) for text in texts]
    found = there.encode_query(texts, convert_to_sparse_tensor=False).numpy()
    np.testing.assert_allclose(found, expected, atol=1e-5)
    expected = encoder.encode_documents([Document("", text) for text in texts]).toarray()
    found = there.encode_document(texts, convert_to_sparse_tensor=False).numpy()
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert there.similarity_fn_name == "dot"
    here = load_encoder(str(tmp_path))
    assert here.fingerprint == encoder.fingerprint
    assert abs(here.encode_queries(texts) - encoder.encode_queries(texts)).max() == 0
    there.save_pretrained(str(tmp_path / "saved"), create_model_card=False)
    again = theirs(tmp_path / "saved").encode_query(texts, convert_to_sparse_tensor=False)
    np.testing.assert_allclose(again.numpy(), encoder.encode_queries(texts).toarray(), atol=1e-5)


@pytest.mark.parametrize("activation", ["relu", "log1p_relu"])
def test_a_router_of_opensearchs_layout(activation: str, tmp_path: Path) -> None:
    """Queries are weights of terms, some of them 0; the transformer lies in the folder itself."""
    made("distilbert", len(TOKENIZER), query="terms", activation=activation).save(tmp_path / "ours")
    weights = torch.rand(len(TOKENIZER)) * 9
    weights[::5] = 0
    weights[torch.from_numpy(TOKENIZER.special_ids)] = 0
    folder = tmp_path / "ours"
    save_file({"weight": weights}, folder / "query_0_SparseStaticEmbedding" / "model.safetensors")
    for file in ("encoder.json", "query_terms.safetensors"):
        (folder / file).unlink()
    there = theirs(folder)
    there.save_pretrained(str(tmp_path / "theirs"), create_model_card=False)
    texts = [*TEXTS, "the quick brown fox jumps over lazy dog and"]
    expected = [
        encode(texts, convert_to_sparse_tensor=False).numpy()
        for encode in (there.encode_query, there.encode_document)
    ]
    assert (expected[0] > 0).any()
    for place in (folder, tmp_path / "theirs"):
        settings = stored_settings(str(place)).settings
        assert isinstance(settings, SparseSettings)
        assert (settings.query, settings.activation) == ("terms", activation)
        here = load_encoder(str(place), exact=True)
        found = here.encode_queries(texts)
        np.testing.assert_allclose(found.toarray(), expected[0], atol=1e-5)
        assert found.nnz == (expected[0] > 0).sum(), "a term without weight is none"
        documents = here.encode_documents([Document("", text) for text in texts])
        np.testing.assert_allclose(documents.toarray(), expected[1], atol=1e-5)
    here.save(tmp_path / "again")
    again = theirs(tmp_path / "again")
    found = again.encode_query(texts, convert_to_sparse_tensor=False).numpy()
    np.testing.assert_allclose(found, expected[0], atol=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"structure": {"query": ["."], "document": ["."]}}, "a Router with these modules"),
        ({"structure": None}, "does not say how queries and documents go"),
        ({"types": {"../x": "SparseStaticEmbedding"}}, "does not say how"),
    ],
)
def test_routers_nothing_here_computes(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    made("bert", len(TOKENIZER), query="terms").save(tmp_path)
    (tmp_path / "encoder.json").unlink()
    file = tmp_path / "router_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    with pytest.raises(InputError, match=message):
        stored_settings(str(tmp_path))


def test_only_routers_that_versions_5_and_6_share(tmp_path: Path) -> None:
    made("bert", len(TOKENIZER), query="terms").save(tmp_path)
    (module,) = json.loads((tmp_path / "modules.json").read_text())
    assert (module["type"], module["path"]) == ("sentence_transformers.models.Router", "")
    types = json.loads((tmp_path / "router_config.json").read_text())["types"]
    assert {kind.rpartition(".")[0] for kind in types.values()} == {
        "sentence_transformers.sparse_encoder.models"
    }
    assert not (set(types) - {"."} - {path.name for path in tmp_path.iterdir()})
    assert len(list(tmp_path.rglob("model.safetensors"))) == 2, "the transformer's is there once"


# The model's matrix has three rows more than the tokenizer has tokens.
@pytest.mark.parametrize(
    "settings", [{"form": "lexmae"}, {"query": "terms"}, {"query_terms": 5, "document_terms": 9}]
)
def test_what_would_give_other_vectors_there_is_not_offered(
    settings: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    encoder = made(**settings)
    encoder.save(tmp_path)
    assert not (tmp_path / "modules.json").exists()
    assert "no modules.json for sentence-transformers" in " ".join(capsys.readouterr().err.split())
    encoder.save(tmp_path)
    assert not capsys.readouterr().err, "said once, not with every checkpoint"
