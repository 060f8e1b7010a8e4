from __future__ import annotations

import datetime

import numpy as np
import pytest

from isthmus.collections import open_corpus
from isthmus.collections.in_memory import documents_spec
from isthmus.records import Document


def test_metadata_comes_back(capsys: pytest.CaptureFixture[str]) -> None:
    day = datetime.datetime(2020, 1, 31, 12)
    given = [
        {"id": "a", "text": "x", "year": np.int64(2020), "score": np.float32(0.5), "day": day},
        {"id": "b", "text": "x", "tags": np.array(["x", "y"]), "open": np.True_, "raw": {1, 2}},
        Document("c", "x", metadata={"id": "inner", "text": 3, "none": None, "tags": ("x",)}),
        Document("d", "x"),
    ]
    assert [one.metadata for one in open_corpus(documents_spec(given)).documents()] == [
        {"year": 2020, "score": 0.5, "day": "2020-01-31T12:00:00"},
        {"tags": ["x", "y"], "open": True},
        {"id": "inner", "text": 3, "tags": ["x"]},
        {},
    ]
    assert "documents in memory: left out of the metadata (1): 'raw'" in capsys.readouterr().err


def test_another_value_is_another_document() -> None:
    one, other = (Document("a", "x", metadata={"year": year}) for year in (2020, 2021))
    assert one != other
    assert hash(one) == hash(Document("a", "x", metadata={"year": 2020}))
