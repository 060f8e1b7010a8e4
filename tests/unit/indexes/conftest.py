"""Small indexes to test with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.factories import described, documents, vectors

from isthmus.indexes.bm25 import Bm25Index, builder
from isthmus.indexes.dense.builder import DenseBuilder
from isthmus.indexes.manifest import Bm25Settings
from isthmus.records import Document


@pytest.fixture
def dense_folder(tmp_path: Path) -> Path:
    """An index of the documents and vectors of `tests.factories`."""
    with DenseBuilder(tmp_path / "dense", described()) as builder:
        for start in range(0, 50, 8):
            builder.add(documents()[start : start + 8], vectors()[start : start + 8])
        return builder.finish({"corpus": "corpus.jsonl"})


@pytest.fixture
def build_bm25(tmp_path: Path) -> Callable[..., Bm25Index]:
    def build(
        documents: list[Document], name: str = "bm25", titles: bool = True, **settings: object
    ) -> Bm25Index:
        chosen = Bm25Settings.parse(settings, where="test")
        description = described("bm25", titles=titles, bm25=chosen)
        return Bm25Index.open(builder.build_bm25(documents, tmp_path / name, description, {}))

    return build
