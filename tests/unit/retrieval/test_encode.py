"""Vectors in a file are those of the encoder, with the ids of their texts."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import isthmus
from isthmus.api import export
from isthmus.encoders import DenseEncoder, DenseSettings, SparseEncoder, SparseSettings
from isthmus.errors import InputError, OutputError, SettingsError
from isthmus.nn.backbone import new_backbone
from isthmus.records import Document
from isthmus.text.tokenizer import new_tokenizer

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
    matrix = np.load(export(docs, scene / "v.npy", model=model, settings=settings))
    np.testing.assert_allclose(matrix, encoder.encode_documents(DOCUMENTS), atol=1e-6)
    ids = [json.loads(line) for line in (scene / "v.ids.jsonl").read_text().splitlines()]
    assert ids == [document.id for document in DOCUMENTS]
    table = pq.read_table(export(docs, scene / "v.parquet", model=model, settings=settings))
    np.testing.assert_array_equal(np.stack(table["vector"].to_numpy()), matrix)
    assert table["id"].to_pylist() == ids
    given = str(scene / "queries.tsv")
    found = np.load(export(given, scene / "q.npy", model=model, as_="queries", settings=exact))
    np.testing.assert_allclose(found, encoder.encode_queries(["lazy dog", "fox"]), atol=1e-6)


def test_terms_of_a_sparse_encoder(scene: Path) -> None:
    model, docs = str(scene / "sparse"), str(scene / "docs.jsonl")
    table = pq.read_table(export(docs, scene / "v.parquet", model=model))
    encoder = isthmus.load_encoder(model)
    assert isinstance(encoder, SparseEncoder)
    expected = encoder.terms(encoder.encode_documents(DOCUMENTS)[0])
    assert table["terms"][0].as_py() == [token for token, _ in expected]
    with pytest.raises(SettingsError, match="is sparse"):
        export(docs, scene / "v.npy", model=model)


def test_a_form_that_is_none_and_a_file_that_is_there_are_refused(scene: Path) -> None:
    with pytest.raises(SettingsError, match="in which format"):
        export("docs", scene / "v.csv", model="model")
    (scene / "v.npy").write_text("mine")
    with pytest.raises(OutputError, match="exists already"):
        export("docs", scene / "v.npy", model="model")
    assert (scene / "v.npy").read_text() == "mine"


def test_how_a_model_encodes_is_a_setting_as_for_an_index(scene: Path) -> None:
    model, docs = str(scene / "dense"), str(scene / "docs.jsonl")
    settings = {"exact": True, "pooling": "mean", "document_prompt": "dog "}
    found = np.load(export(docs, scene / "v.npy", model=model, settings=settings))
    chosen = {"pooling": "mean", "document_prompt": "dog "}
    encoder = isthmus.load_encoder(model, chosen, exact=True)
    np.testing.assert_allclose(found, encoder.encode_documents(DOCUMENTS), atol=1e-6)
    cut = encoder.cut_texts
    assert cut.room == 144 - 3, "the prompt's tokens are not the text's"
    assert cut.tokens == sum(2 * n + 1 for n in range(1, 6))
    for folder in ("first", "second"):
        isthmus.index(docs, scene / folder, encoder)
        assert cut.texts == 5, "each index counts its own texts"


def test_the_vectors_of_an_index_are_written_as_they_are_stored(scene: Path) -> None:
    model, docs = str(scene / "dense"), str(scene / "docs.jsonl")
    index = isthmus.index(docs, scene / "index", ["bm25", model])
    written = np.load(index.export(scene / "v.npy"))
    encoder = isthmus.load_encoder(model)
    np.testing.assert_allclose(written, encoder.encode_documents(DOCUMENTS), atol=1e-2)
    ids = [json.loads(line) for line in (scene / "v.ids.jsonl").read_text().splitlines()]
    assert ids == [f"{document.id}#1" for document in DOCUMENTS], "of passages"
    words = isthmus.index(docs, scene / "words")
    with pytest.raises(InputError, match="holds no vectors"):
        words.export(scene / "w.npy")
    with pytest.raises(SettingsError, match="is not the folder of an index"):
        export(docs, scene / "w.npy")
