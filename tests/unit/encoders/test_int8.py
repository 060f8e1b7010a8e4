"""Encoding in integers: near float32, alone in every company, made once."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForMaskedLM

from isthmus.encoders import DenseEncoder, SparseEncoder, load_encoder, load_int8_encoder
from isthmus.encoders.dense import DenseSettings
from isthmus.encoders.int8 import Int8Model
from isthmus.encoders.sparse import SparseSettings
from isthmus.errors import IsthmusError
from isthmus.indexes.index import Index
from isthmus.indexes.manifest import read_manifest
from isthmus.nn.architectures import MASKED_LM
from isthmus.nn.backbone import Backbone
from isthmus.records import Document
from isthmus.retrieval.index import IndexSettings, index
from isthmus.text.tokenizer import new_tokenizer

TOKENIZER = new_tokenizer(["the quick brown fox jumps over the lazy dog"] * 2, 90)
TEXTS = ["the quick fox", "dog", "", "jumps over the lazy dog and the fox " * 9, "quick brown"]
DOCUMENTS = [Document(str(number), text) for number, text in enumerate(TEXTS)]
KINDS = {
    "dense": (DenseEncoder, DenseSettings(pooling="mean", document_max_length=48)),
    "sparse": (SparseEncoder, SparseSettings(document_max_length=48)),
}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ISTHMUS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def encoder(kind: str, architecture: str = "bert") -> DenseEncoder | SparseEncoder:
    torch.manual_seed(0)
    sizes = {
        "vocab_size": len(TOKENIZER), "hidden_size": 32, "num_hidden_layers": 2,
        "num_attention_heads": 2, "intermediate_size": 48, "max_position_embeddings": 80,
        "pad_token_id": TOKENIZER.pad_id, "dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 48,
        "initializer_range": 0.3, "bos_token_id": None, "eos_token_id": None, "cls_token_id": None,
        "sep_token_id": None,
    }  # fmt: skip
    config = AutoConfig.for_model(architecture)
    config.update({name: value for name, value in sizes.items() if hasattr(config, name)})
    made, settings = KINDS[kind]
    backbone = Backbone(AutoModelForMaskedLM.from_config(config))
    return made(backbone, TOKENIZER, settings)  # type: ignore[arg-type, no-any-return]


def rows(vectors: Any) -> np.ndarray:
    return vectors if isinstance(vectors, np.ndarray) else vectors.toarray()


def cosines(one: Any, two: Any) -> np.ndarray:
    one, two = rows(one), rows(two)
    return (one * two).sum(1) / np.linalg.norm(one, axis=1) / np.linalg.norm(two, axis=1)


# Every architecture as a dense encoder, but for RoBERTa's other names, and one as a sparse one; the
# others differ in the head alone.
REPEATED = {
    *(("dense", name) for name in ("camembert", "xlm-roberta")),
    *(("sparse", name) for name in MASKED_LM if name != "bert"),
}
PAIRS = [
    pytest.param(*pair, marks=pytest.mark.nightly if pair in REPEATED else ())
    for pair in itertools.product(KINDS, MASKED_LM)
]


@pytest.mark.parametrize(("kind", "architecture"), PAIRS)
def test_every_product_with_weights_is_of_integers(
    kind: str, architecture: str, cache: Path
) -> None:
    made = encoder(kind, architecture)
    exact = made.encode_documents(DOCUMENTS)
    made.int8 = Int8Model(made)
    found = made.encode_documents(DOCUMENTS)
    assert cosines(found, exact).min() > 0.98
    assert abs(found - exact).max() > 0, "computed otherwise"
    (file,) = cache.glob("*/*/model.onnx")
    graph = onnx.load(file).graph
    weights = {tensor.name for tensor in graph.initializer if len(tensor.dims) == 2}
    products = [node for node in graph.node if "MatMul" in node.op_type or node.op_type == "Gemm"]
    module = made.backbone if kind == "sparse" else made.backbone.encoder
    layers = sum(isinstance(part, nn.Linear) for part in module.modules())
    of_integers = [node for node in products if node.op_type == "MatMulInteger"]
    assert len(of_integers) == layers
    assert [node for node in products if weights & {*node.input}] == of_integers
    assert [path.name for path in file.parent.iterdir()] == ["model.onnx"], "nothing left over"


def test_weights_that_are_summed_over_positions() -> None:
    """Of texts that are shorter and longer than the one that the model was traced with."""
    largest = encoder("sparse")
    settings = SparseSettings(document_max_length=48, pooling_strategy="sum")
    made = SparseEncoder(largest.backbone, TOKENIZER, settings)
    exact = made.encode_documents(DOCUMENTS)
    made.int8 = Int8Model(made)
    found = made.encode_documents(DOCUMENTS)
    assert cosines(found, exact).min() > 0.98
    sums = rows(found).sum(1) / rows(exact).sum(1)
    assert np.abs(sums - 1).max() < 0.1, "every position counts once"


@pytest.mark.parametrize("kind", KINDS)
def test_company_changes_no_number_at_all(kind: str) -> None:
    made = encoder(kind)
    made.int8 = Int8Model(made)
    together = rows(made.encode_documents(DOCUMENTS))
    for place, document in enumerate(DOCUMENTS):
        np.testing.assert_array_equal(rows(made.encode_documents([document]))[0], together[place])
    backwards = rows(made.encode_documents(DOCUMENTS[::-1]))
    np.testing.assert_array_equal(backwards[::-1], together)
    assert rows(made.encode_documents([])).shape == (0, made.dimension)
    queries = rows(made.encode_queries(TEXTS[:2]))
    np.testing.assert_array_equal(queries, together[:2])


def test_it_is_made_once_for_the_same_weights(cache: Path) -> None:
    Int8Model(encoder("dense"))
    (file,) = cache.glob("*/*/model.onnx")
    made = file.stat().st_mtime_ns
    again = encoder("dense")
    again.int8 = Int8Model(again)
    assert file.stat().st_mtime_ns == made
    other = encoder("dense")
    with torch.no_grad():
        other.backbone.word_embeddings[:, :5] += 1
    other.int8 = Int8Model(other)
    assert len(list(cache.glob("*/*/model.onnx"))) == 2
    assert abs(rows(other.encode_queries(TEXTS)) - rows(again.encode_queries(TEXTS))).max() > 1e-3


@pytest.mark.parametrize("kind", KINDS)
def test_an_index_filled_in_integers(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    encoder(kind).save(tmp_path / "model")
    lines = (json.dumps({"_id": d.id, "text": d.text}) for d in DOCUMENTS if d.text)
    (tmp_path / "corpus.jsonl").write_text("\n".join(lines))
    corpus, model = str(tmp_path / "corpus.jsonl"), str(tmp_path / "model")
    settings = IndexSettings.parse({"encoding": {"backend": "onnx-int8"}, "block_size": 2}, "test")
    folder = index(corpus, tmp_path / "int8", model, settings=settings)
    said = " ".join(capsys.readouterr().err.split())
    assert said.count("onnx-int8: 2 documents have cosines of 0.9") == 1, "once, of the first block"
    origin, *_ = read_manifest(folder).encoders.values()
    assert origin.backend == "onnx-int8"
    with pytest.raises(IsthmusError, match=r"differs in fields\.\w+\.encoder\.backend"):
        index(corpus, folder, model)
    in_floats = load_encoder(model)
    assert origin.fingerprint == in_floats.fingerprint == load_int8_encoder(model).fingerprint
    asked = in_floats.encode_queries(["dog"])
    (ranking,), (expected,) = (
        Index.open(one).search(kind, asked, 4, ["q"])
        for one in (folder, index(corpus, tmp_path / "torch", model))
    )
    assert set(ranking.document_ids) == set(expected.document_ids)
    assert ranking.scores == pytest.approx(expected.scores, rel=0.1)
    assert ranking.scores != expected.scores, "other vectors"
