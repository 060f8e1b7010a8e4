"""A dense encoder is what is stored beside it; its fingerprint changes whenever a vector might."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModel

from isthmus.encoders.dense import DenseEncoder, DenseSettings
from isthmus.encoders.loader import load_encoder
from isthmus.encoders.model_settings import stored_settings
from isthmus.errors import InputError, MismatchError, SettingsError
from isthmus.nn.backbone import Backbone, new_backbone
from isthmus.records import Document
from isthmus.text.tokenizer import Tokenizer, new_tokenizer

TOKENIZER = new_tokenizer(["the quick brown fox jumps over the lazy dog"] * 2, 80)
TEXTS = ["the fox", "a lazy dog jumps", ""]


def encoder(seed: int = 0, tokenizer: Tokenizer = TOKENIZER, **settings: Any) -> DenseEncoder:
    backbone = new_backbone("tiny", 90, tokenizer.pad_id, max_length=144, seed=seed)
    return DenseEncoder(backbone, tokenizer, DenseSettings.parse(settings, "test"))


def test_saving_and_loading_is_the_identity(tmp_path: Path) -> None:
    saved = encoder(pooling="mean", similarity="cosine", query_max_length=17, titles=False)
    saved.save(tmp_path)
    settings = stored_settings(str(tmp_path)).settings
    assert settings == saved.settings
    again = DenseEncoder(Backbone.load(str(tmp_path)), Tokenizer.load(str(tmp_path)), settings)
    stored = dict(again.backbone.state_dict())
    torch.testing.assert_close(stored, dict(saved.backbone.state_dict()), rtol=0, atol=0)
    vectors = saved.encode_queries(TEXTS)
    np.testing.assert_allclose(again.encode_queries(TEXTS), vectors, atol=1e-6)
    assert again.backbone.has_head, "a sparse retriever may need it"
    again.save(tmp_path / "twice")
    loaded = load_encoder(str(tmp_path))
    assert loaded.fingerprint == load_encoder(str(tmp_path / "twice")).fingerprint
    assert loaded.settings == saved.settings
    difference = loaded.encode_queries(TEXTS) - saved.encode_queries(TEXTS)
    assert np.abs(difference).max() < 0.05, "bf16 where the chip is fast in it"


def test_rounded_weights_are_not_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("isthmus.encoders.encoder.native_bf16", lambda: True)
    saved = encoder()
    saved.save(tmp_path / "model")
    rounded = load_encoder(str(tmp_path / "model"))
    with pytest.raises(SettingsError, match="were rounded to bf16") as refused:
        rounded.save(tmp_path / "again")
    assert "exact=True" in refused.value.fix
    assert not (tmp_path / "again").exists()
    load_encoder(str(tmp_path / "model"), exact=True).save(tmp_path / "again")
    stored = load_encoder(str(tmp_path / "again"))
    assert stored.fingerprint == rounded.fingerprint == saved.fingerprint


def test_transformers_finds_every_weight_of_a_saved_encoder(tmp_path: Path) -> None:
    own = new_backbone("tiny", 90, TOKENIZER.pad_id, max_length=144)
    bare = AutoModel.from_config(own.config)  # with a pooler, as MiniLM, E5, BGE and GTE come
    bare.save_pretrained(tmp_path)
    TOKENIZER.save(tmp_path)
    loaded = load_encoder(str(tmp_path), exact=True)
    assert not any("pooler" in name for name, _ in loaded.backbone.named_parameters())
    loaded.save(tmp_path / "saved")
    again, report = AutoModel.from_pretrained(tmp_path / "saved", output_loading_info=True)
    assert not any(report.values()), report
    torch.testing.assert_close(again.pooler.state_dict(), bare.pooler.state_dict(), rtol=0, atol=0)
    loaded.restore(tmp_path / "saved")


def test_settings_given_replace_those_stored(tmp_path: Path) -> None:
    encoder(pooling="mean").save(tmp_path)
    loaded = load_encoder(str(tmp_path), DenseSettings(pooling="cls"))
    assert loaded.settings.pooling == "cls"


def test_the_fingerprint_sees_weights_tokenizer_and_every_setting() -> None:
    other_tokenizer = new_tokenizer(["pack my box with five dozen liquor jugs"], 60)
    variants = [
        encoder(),
        encoder(seed=1),
        encoder(tokenizer=other_tokenizer),
        encoder(pooling="mean"),
        encoder(similarity="cosine"),
        encoder(query_max_length=32),
        encoder(document_max_length=100),
        encoder(titles=False),
    ]
    assert len({variant.fingerprint for variant in variants}) == len(variants)
    assert encoder().fingerprint == variants[0].fingerprint
    changed = encoder()
    with torch.no_grad():
        changed.backbone.encoder.encoder.layer[1].output.dense.bias[3] += 1e-6
    assert changed.fingerprint != variants[0].fingerprint


def test_rounding_for_speed_does_not_change_the_fingerprint() -> None:
    fast = encoder()
    fast.use_fast_inference()
    assert fast.fingerprint == encoder().fingerprint
    assert fast.encode_queries(TEXTS).dtype == np.float32


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_only_states_that_become_a_vector_leave_the_last_layer(
    pooling: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU, in plain torch: the vectors are the same."""
    made = encoder(pooling=pooling)
    made.backbone.eval()
    ids = torch.tensor([[2, 20, 21, 22, 3], [2, 23, 3, 0, 0], [2, 24, 3, 0, 0]])
    mask = (ids != 0).long()
    with torch.no_grad():
        expected = made.represent_documents(ids, mask)
        monkeypatch.setattr("isthmus.nn.backbone.has_kernels", lambda states: True)
        asked: list[Any] = []
        forward = made.backbone.forward
        monkeypatch.setattr(
            made.backbone, "forward", lambda *given: asked.append(given[3]) or forward(*given)
        )
        found = made.represent_documents(ids, mask)
    assert (asked[0] is not None) is (pooling == "cls")
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_every_token_vector_is_of_a_place_in_its_text() -> None:
    texts = ["the fox jumps", "a lazy dog " * 40, ""]
    made = encoder(query_prompt="quick: ", document_prompt="brown fox. ", document_max_length=30)
    both = made.with_tokens()
    queries, found = (
        both.encode_queries(texts),
        both.encode_documents([Document("", text) for text in texts]),
    )
    for number, text in enumerate(texts):
        for given, is_query in ((queries, True), (found, False)):
            ((ids, spans),) = made.token_places([text], queries=is_query)
            assert len(ids) == len(given.tokens.vectors.row(number))
            pieces = ids if is_query else np.unique(ids)
            assert pieces.tolist() == given.tokens.pieces.row(number).tolist()
            read = [text[start:end] for start, end in spans]
            assert "".join(read) == text.replace(" ", "")[: len("".join(read))]
            assert len(read) > 1 or not text


def test_titles_follow_the_switch() -> None:
    document = [Document("1", "lazy dog", title="the fox")]
    together = encoder().encode_documents([Document("1", "the fox\nlazy dog")])
    np.testing.assert_allclose(encoder().encode_documents(document), together, atol=1e-6)
    alone = encoder().encode_documents([Document("1", "lazy dog")])
    without = encoder(titles=False).encode_documents(document)
    np.testing.assert_allclose(without, alone, atol=1e-6)
    assert not np.allclose(together, alone, atol=1e-3)


def test_lengths_beyond_the_models_positions() -> None:
    with pytest.raises(SettingsError, match="document_max_length = 145 is more than") as caught:
        encoder(document_max_length=145)
    assert caught.value.fix == "--set document_max_length=144"


def test_a_tokenizer_of_more_tokens_than_the_model_knows() -> None:
    backbone = new_backbone("tiny", len(TOKENIZER) - 1, TOKENIZER.pad_id)
    with pytest.raises(
        MismatchError, match=f"the tokenizer of the model has {len(TOKENIZER)} tokens"
    ):
        DenseEncoder(backbone, TOKENIZER, DenseSettings())


def sentence_transformers_folder(folder: Path, files: dict[str, Any]) -> str:
    for name, value in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(json.dumps(value))
    return str(folder)


def modules(*kinds: str, path: str = "sentence_transformers.models") -> list[dict[str, Any]]:
    return [
        {"idx": n, "name": str(n), "path": f"{n}_{kind}" if n else "", "type": f"{path}.{kind}"}
        for n, kind in enumerate(kinds)
    ]


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (
            {"modules.json": modules("Transformer", "Pooling"),
             "1_Pooling/config.json": {"pooling_mode_cls_token": True,
                                       "pooling_mode_mean_tokens": False},
             "sentence_bert_config.json": {"max_seq_length": 128}},
            ("cls", "dot", 128),
        ),
        (
            {"modules.json": modules("Transformer", "Pooling", "Normalize"),
             "1_Pooling/config.json": {"pooling_mode_mean_tokens": True}},
            ("mean", "cosine", 256),
        ),
        (
            {"modules.json": modules("Transformer", "Pooling", path="sentence_transformers.base.x"),
             "1_Pooling/config.json": {"pooling_mode": "mean"},
             "tokenizer_config.json": {"model_max_length": 77},
             "config_sentence_transformers.json": {"similarity_fn_name": "cosine"}},
            ("mean", "cosine", 77),
        ),
        (
            {"modules.json": modules("Transformer", "Pooling"),
             "1_Pooling/config.json": {"pooling_mode": "cls"},
             "tokenizer_config.json": {"model_max_length": int(1e30)},
             "sentence_bert_config.json": {"max_seq_length": None},
             "config_sentence_transformers.json": {"similarity_fn_name": None}},
            ("cls", "dot", 256),
        ),
    ],
)  # fmt: skip
def test_what_sentence_transformers_stored(
    files: dict[str, Any], expected: tuple[str, str, int], tmp_path: Path
) -> None:
    settings = stored_settings(sentence_transformers_folder(tmp_path, files)).settings
    assert (settings.pooling, settings.similarity, settings.document_max_length) == expected
    assert settings.query_max_length == expected[2]


def test_modules_and_poolings_nobody_here_computes(tmp_path: Path) -> None:
    folder = sentence_transformers_folder(
        tmp_path / "dense", {"modules.json": modules("Transformer", "Pooling", "CNN")}
    )
    with pytest.raises(InputError, match="Transformer, Pooling, CNN"):
        stored_settings(folder)
    for pooling in (
        {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True},
        {"pooling_mode": "unheard of"},
        {"pooling_mode": ["cls", "mean"]},
        {},
    ):
        folder = sentence_transformers_folder(
            tmp_path / "pool",
            {"modules.json": modules("Transformer", "Pooling"), "1_Pooling/config.json": pooling},
        )
        with pytest.raises(InputError) as caught:
            stored_settings(folder)
        assert caught.value.expected.startswith("cls, mean")


def test_a_plain_model_gets_the_defaults_and_a_notice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new_backbone("tiny", 90, 0).save(tmp_path)
    assert stored_settings(str(tmp_path)).settings == DenseSettings()
    assert "says how to pool" in " ".join(capsys.readouterr().err.split())
