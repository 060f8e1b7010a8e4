"""Small indexes to test with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from isthmus.indexes.bm25 import Bm25Index, builder
from isthmus.indexes.dense.builder import DenseBuilder
from isthmus.indexes.manifest import Bm25Settings, CorpusOrigin, Description, EncoderOrigin
from isthmus.records import Document

CORPUS = CorpusOrigin(spec="corpus.jsonl", fingerprint="c0")


@pytest.fixture
def dense_description() -> Description:
    return Description(
        kind="dense",
        corpus=CORPUS,
        titles=True,
        encoder=EncoderOrigin(name="model", fingerprint="e0"),
        dimension=4,
        dtype="float32",
    )


@pytest.fixture
def documents() -> list[Document]:
    """Ids that sort differently from their order and from their numbers; scripts of all kinds."""
    texts = ["a river", "the bank of a river", "money in the bank", "", "naïve Σίσυφος 雪国"]
    return [
        Document(f"d{(7 * row) % 50}", texts[row % len(texts)], f"title {row}") for row in range(50)
    ]


@pytest.fixture
def vectors() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((50, 4)).astype(np.float32)


@pytest.fixture
def dense_folder(
    tmp_path: Path, dense_description: Description, documents: list[Document], vectors: np.ndarray
) -> Path:
    with DenseBuilder(tmp_path / "dense", dense_description) as builder:
        for start in range(0, 50, 8):
            builder.add(documents[start : start + 8], vectors[start : start + 8])
        return builder.finish({"corpus": "corpus.jsonl"})


@pytest.fixture
def build_bm25(tmp_path: Path) -> Callable[..., Bm25Index]:
    def build(
        documents: list[Document], name: str = "bm25", titles: bool = True, **settings: object
    ) -> Bm25Index:
        description = Description(
            kind="bm25",
            corpus=CORPUS,
            titles=titles,
            bm25=Bm25Settings.parse(settings, where="test"),
        )
        return Bm25Index.open(builder.build_bm25(documents, tmp_path / name, description, {}))

    return build
