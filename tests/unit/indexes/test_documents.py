"""Documents come back as they went in, by row and by id."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.factories import documents

from isthmus.errors import InputError
from isthmus.indexes.documents import DocumentStore, DocumentWriter
from isthmus.records import Document

DOCUMENTS = documents()


def _write(folder: Path, blocks: list[list[Document]], texts: bool = True) -> DocumentStore:
    with DocumentWriter(folder, texts) as writer:
        for block in blocks:
            writer.add(block)
        writer.finish()
    return DocumentStore(folder)


def test_rows_and_ids(tmp_path: Path) -> None:
    store = _write(tmp_path, [DOCUMENTS[:7], DOCUMENTS[7:8], DOCUMENTS[8:]])
    assert [store.document(row) for row in range(len(store))] == DOCUMENTS
    assert [store.row(document.id) for document in DOCUMENTS] == list(range(50))
    assert store.row("absent") is None
    assert store.row("zzz") is None
    assert store.row("") is None
    rows = np.array([49, 0, 8, 7, 7, 6])
    assert store.ids(rows) == [DOCUMENTS[row].id for row in rows]
    assert store.ids(np.array([], dtype=np.int64)) == []
    many = np.tile(rows, 20)  # taken block by block, not one by one
    assert store.ids(many) == [DOCUMENTS[row].id for row in many]
    for some in (rows, many):
        assert store.documents(some) == [DOCUMENTS[row] for row in some]


def test_ranks_are_the_order_of_python_strings(tmp_path: Path) -> None:
    ids = ["b", "a", "Z", "é", "10", "9", "", "雪", "\U0001f600", "￿"]
    store = _write(tmp_path, [[Document(i, "")] for i in ids])
    assert [ids[row] for row in np.argsort(store.ranks)] == sorted(ids)


def test_texts_are_optional(tmp_path: Path) -> None:
    document = Document("a", "long text", "title")
    store = _write(tmp_path, [[document]], texts=False)
    assert store.document(0) == Document("a", "", "title")
    for count in (1, 100):
        rows = np.zeros(count, dtype=np.int64)
        assert store.documents(rows) == [Document("a", "", "title")] * count


def test_duplicate_ids_are_refused(tmp_path: Path) -> None:
    blocks = [[Document("a", "1"), Document("b", "2")], [Document("a", "3")]]
    with pytest.raises(InputError) as caught:
        _write(tmp_path, blocks)
    assert "two documents have the id 'a'" in caught.value.what
    assert "numbers 1 and 3 of the corpus" in caught.value.what
