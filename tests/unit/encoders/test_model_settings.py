"""How a model encodes, as far as its files and its name tell; what is assumed is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from isthmus.encoders import DenseSettings, SparseEncoder, SparseSettings, load_encoder
from isthmus.encoders.model_settings import known_settings, stored_settings
from isthmus.errors import InputError
from isthmus.nn.backbone import new_backbone
from isthmus.text.tokenizer import new_tokenizer

WEB = (
    "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery: "
)
ENGLISH = "Represent this sentence for searching relevant passages: "


def folder(place: Path, **files: Any) -> str:
    place.mkdir(parents=True)
    for name, content in {"config": {"max_position_embeddings": 512}, **files}.items():
        (place / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    return str(place)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("e5-base-v2", ("mean", "cosine", "query: ", "passage: ")),
        ("multilingual-e5-small", ("mean", "cosine", "query: ", "passage: ")),
        ("multilingual-e5-large-instruct", ("mean", "cosine", WEB, "")),
        ("bge-small-en-v1.5", ("cls", "cosine", ENGLISH, "")),
        ("bge-m3", ("cls", "cosine", "", "")),
        ("gte-small", ("mean", "cosine", "", "")),
        ("gtr-t5-base", ("mean", "cosine", "", "")),
        ("contriever-msmarco", ("mean", "dot", "", "")),
    ],
)
def test_plain_folders_of_known_families(
    name: str, expected: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings, assumed = stored_settings(folder(tmp_path / name))
    assert isinstance(settings, DenseSettings)
    assert (settings.pooling, settings.similarity, *settings.prompts()) == expected
    assert settings.document_max_length == 512
    assert f"by the name {name}: pooling='{expected[0]}'" in assumed
    assert ("WITHOUT the Dense layer" in assumed) is name.startswith("gtr-")
    assert assumed in capsys.readouterr().err
    # Made from it, and saved by transformers; or in the cache of the hub.
    made = folder(
        tmp_path / "x", config={"_name_or_path": f"org/{name}", "max_position_embeddings": 512}
    )
    assert known_settings(made) == settings
    cached = folder(tmp_path / f"models--org--{name}" / "snapshots" / "0a1b")
    assert known_settings(cached) == settings


@pytest.mark.parametrize("name", ["splade-v3", "opensearch-neural-sparse-encoding-v2-distill"])
def test_sparse_families(name: str, tmp_path: Path) -> None:
    settings, assumed = stored_settings(folder(tmp_path / name))
    assert isinstance(settings, SparseSettings)
    assert "sparse" in assumed


@pytest.mark.parametrize("version", ["v1", "v3-distill"])
def test_opensearchs_encoders_of_documents_weigh_query_terms_by_their_file(
    version: str, tmp_path: Path
) -> None:
    place = tmp_path / f"opensearch-neural-sparse-encoding-doc-{version}"
    tokenizer = new_tokenizer(["the quick brown fox jumps over the lazy dog"] * 2, 80)
    backbone = new_backbone("tiny", len(tokenizer), tokenizer.pad_id, max_length=32, seed=0)
    backbone.save(place)
    tokenizer.save(place)
    (place / "idf.json").write_text(json.dumps({"fox": 2.5, "dog": 0.75}), encoding="utf-8")
    encoder = load_encoder(str(place), exact=True)
    assert isinstance(encoder, SparseEncoder)
    assert "query='terms'" in encoder.assumed
    assert encoder.settings.activation == ("log1p_relu" if "v3" in version else "relu")
    (row,) = encoder.encode_queries(["the fox, the dog"])
    assert encoder.terms(row) == [("fox", pytest.approx(2.5)), ("dog", pytest.approx(0.75))]
    (place / "idf.json").write_text('{"unicorn": 1}', encoding="utf-8")
    with pytest.raises(InputError, match="unicorn"):
        load_encoder(str(place))
    (place / "idf.json").unlink()
    with pytest.raises(InputError, match="weights of query terms"):
        load_encoder(str(place))


@pytest.mark.parametrize(
    "name",
    [
        "my-e5-base-v2", "e5-base-v2-tuned", "bge-reranker-base", "gte-small-zh", "bert-base",
        "splade-v3-doc", "gte", "e5",
    ],
)  # fmt: skip
def test_what_is_not_certain_is_not_recognised(name: str, tmp_path: Path) -> None:
    assert known_settings(folder(tmp_path / name)) is None


def modules() -> list[dict[str, Any]]:
    kinds = ["Transformer", "Pooling", "Normalize"]
    return [
        {"path": f"{n}_{kind}" if n else "", "type": f"sentence_transformers.models.{kind}"}
        for n, kind in enumerate(kinds)
    ]


def pooled(place: Path, **files: Any) -> str:
    found = folder(place, modules=modules(), **files)
    (place / "1_Pooling").mkdir()
    (place / "1_Pooling" / "config.json").write_text('{"pooling_mode": "mean"}', encoding="utf-8")
    return found


def test_e5_as_its_authors_publish_it_lacks_its_prompts(tmp_path: Path) -> None:
    settings, assumed = stored_settings(pooled(tmp_path / "e5-small-v2"))
    assert settings.prompts() == ("query: ", "passage: ")
    assert "taken for E5 by the name e5-small-v2: query_prompt='query: '" in assumed
    stated = {"config_sentence_transformers": {"prompts": {"query": "q: ", "document": ""}}}
    settings, assumed = stored_settings(pooled(tmp_path / "stated" / "e5-small-v2", **stated))
    assert (*settings.prompts(), assumed) == ("q: ", "", "")
    # What was trained on from it may have been trained without.
    config = {"_name_or_path": "intfloat/e5-small-v2", "max_position_embeddings": 512}
    settings, assumed = stored_settings(pooled(tmp_path / "tuned", config=config))
    assert (*settings.prompts(), assumed) == ("", "", "")


def test_what_a_user_says_replaces_what_is_found(tmp_path: Path) -> None:
    name = folder(tmp_path / "e5-small-v2")
    settings = stored_settings(name, {"query_prompt": "", "document_max_length": 99}).settings
    assert settings.prompts() == ("", "passage: ")
    assert settings.document_max_length == 99
    plain = folder(tmp_path / "plain")
    assert isinstance(stored_settings(plain, {"encoder": "sparse"}).settings, SparseSettings)
    assert stored_settings(plain, {"pooling": "max", "similarity": "dot"}).assumed == ""
    assert "using dot (" in stored_settings(plain, {"pooling": "max"}).assumed
    with pytest.raises(InputError, match="is dense"):
        stored_settings(name, {"encoder": "sparse"})


def test_other_architectures_are_refused(tmp_path: Path) -> None:
    from transformers import UMT5Config

    UMT5Config(d_model=16, num_layers=1).save_pretrained(tmp_path)
    new_tokenizer(["a b"], 50).save(tmp_path)
    with pytest.raises(InputError, match="is a 'umt5' model, which isthmus does not know"):
        load_encoder(str(tmp_path))


def test_the_assumption_travels_with_the_encoder(tmp_path: Path) -> None:
    place = tmp_path / "gte-small"
    new_backbone("tiny", 90, 0).save(place)
    new_tokenizer(["the quick brown fox"] * 2, 90).save(place)
    assert "taken for GTE" in load_encoder(str(place)).assumed
    assert load_encoder(str(place), {"pooling": "cls"}).settings.pooling == "cls"
