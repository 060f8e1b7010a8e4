"""Vectors in a file are those of the encoder, with the ids of their texts."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from tests.crashes import killed_before

import isthmus
from isthmus.encoders import DenseEncoder, DenseSettings, SparseEncoder, SparseSettings
from isthmus.errors import InputError, OutputError, SettingsError
from isthmus.nn.sizes import new_backbone
from isthmus.records import Document
from isthmus.text.new_tokenizer import new_tokenizer

TOKENIZER = new_tokenizer(["the quick brown fox jumps over the lazy dog"] * 2, 80)
DOCUMENTS = [Document(f"d {n}", "fox dog " * n, "lazy") for n in range(1, 6)]


@pytest.fixture
def scene(tmp_path: Path) -> Path:
    backbone = new_backbone("tiny", 90, TOKENIZER.pad_id, max_length=144, seed=0)
    DenseEncoder(backbone, TOKENIZER, DenseSettings()).save(tmp_path / "dense")
    SparseEncoder(backbone, TOKENIZER, SparseSettings()).save(tmp_path / "sparse")
    lines = [{"_id": d.id, "text": d.text, "title": d.title} for d in DOCUMENTS]
    (tmp_path / "docs.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    (tmp_path / "queries.tsv").write_text("q1\tlazy dog\nq2\tfox\n")
    return tmp_path


def test_documents_and_queries_of_a_dense_encoder(scene: Path) -> None:
    model, docs, exact = str(scene / "dense"), str(scene / "docs.jsonl"), {"exact": True}
    encoder = isthmus.load_encoder(model, exact=True)
    settings = {**exact, "block_size": 2}
    matrix = np.load(isthmus.encode(docs, scene / "v.npy", model, settings=settings))
    np.testing.assert_allclose(matrix, encoder.encode_documents(DOCUMENTS), atol=1e-6)
    ids = [json.loads(line) for line in (scene / "v.ids.jsonl").read_text().splitlines()]
    assert ids == [document.id for document in DOCUMENTS]
    table = pq.read_table(isthmus.encode(docs, scene / "v.parquet", model, settings=settings))
    np.testing.assert_array_equal(np.stack(table["vector"].to_numpy()), matrix)
    assert table["id"].to_pylist() == ids
    given = str(scene / "queries.tsv")
    found = np.load(isthmus.encode(given, scene / "q.npy", model, queries=True, settings=exact))
    np.testing.assert_allclose(found, encoder.encode_queries(["lazy dog", "fox"]), atol=1e-6)


def test_terms_of_a_sparse_encoder(scene: Path) -> None:
    model, docs = str(scene / "sparse"), str(scene / "docs.jsonl")
    table = pq.read_table(isthmus.encode(docs, scene / "v.parquet", model))
    encoder = isthmus.load_encoder(model)
    assert isinstance(encoder, SparseEncoder)
    expected = encoder.terms(encoder.encode_documents(DOCUMENTS)[0])
    assert table["terms"][0].as_py() == [token for token, _ in expected]
    with pytest.raises(SettingsError, match="is sparse"):
        isthmus.encode(docs, scene / "v.npy", model)


def test_a_form_that_is_none_and_a_file_that_is_there_are_refused(scene: Path) -> None:
    with pytest.raises(SettingsError, match="in which format"):
        isthmus.encode("docs", scene / "v.csv", "model")
    (scene / "v.npy").write_text("mine")
    with pytest.raises(OutputError, match="exists already"):
        isthmus.encode("docs", scene / "v.npy", "model")
    assert (scene / "v.npy").read_text() == "mine"


def test_how_a_model_encodes_is_a_setting_as_for_an_index(scene: Path) -> None:
    model, docs = str(scene / "dense"), str(scene / "docs.jsonl")
    settings = {"exact": True, "pooling": "mean", "document_prompt": "dog "}
    found = np.load(isthmus.encode(docs, scene / "v.npy", model, settings=settings))
    chosen = {"pooling": "mean", "document_prompt": "dog "}
    encoder = isthmus.load_encoder(model, chosen, exact=True)
    np.testing.assert_allclose(found, encoder.encode_documents(DOCUMENTS), atol=1e-6)
    cut = encoder.cut_texts
    assert cut.room == 144 - 3, "the prompt's tokens are not the text's"
    assert cut.tokens == sum(2 * n + 1 for n in range(1, 6))
    for folder in ("first", "second"):
        isthmus.index(docs, scene / folder, encoder)
        assert cut.texts == 5, "each index counts its own texts"


def test_an_index_does_not_say_of_a_loaded_encoder_what_is_not_so(
    scene: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("isthmus.encoders.encoder.native_bf16", lambda: True)
    model, docs, in_full = str(scene / "dense"), str(scene / "docs.jsonl"), "torch-float32"
    rounded, exact = (isthmus.load_encoder(model, exact=exact) for exact in (False, True))
    for encoder, key, value in (
        (rounded, "encoding.backend", in_full),
        (exact, "encoding.backend", "onnx-int8"),
        (exact, "pooling", "mean"),
    ):
        with pytest.raises(SettingsError, match="the encoder is loaded already") as refused:
            isthmus.index(docs, scene / "index", encoder, settings={key: value})
        assert key in refused.value.what
    folder = isthmus.index(docs, scene / "index", exact, settings={"encoding.backend": in_full})
    opened = isthmus.open_searcher(folder).encoder
    assert isinstance(opened, DenseEncoder)
    assert not opened.rounded


def test_texts_that_are_not_there_leave_nothing(scene: Path) -> None:
    before = sorted(scene.iterdir())
    with pytest.raises(InputError):
        isthmus.encode(str(scene / "nope"), scene / "v.npy", str(scene / "dense"))
    assert sorted(scene.iterdir()) == before
    (scene / "v.ids.jsonl").write_text("mine")
    with pytest.raises(OutputError, match=r"v\.ids\.jsonl' exists already"):
        isthmus.encode("docs", scene / "v.npy", "model")


@pytest.mark.slow
def test_encoding_is_killed(scene: Path) -> None:
    """Whenever that is, there are both files or no vectors, and the same command ends well."""
    model, docs, output = str(scene / "dense"), str(scene / "docs.jsonl"), scene / "v.npy"
    encode = partial(isthmus.encode, docs, output, model)
    names = scene / "v.ids.jsonl"
    step, halfway = 1, False
    while killed_before(step, encode):
        assert names.exists() or not output.exists()
        halfway |= names.exists() and not output.exists()
        if not output.exists():
            encode()
        assert len(np.load(output)) == len(names.read_text().splitlines()) == 5
        assert not list(scene.glob(".*.part")), f"step {step}"
        output.unlink()
        names.unlink()
        step += 1
    assert halfway, "killed between the two"
