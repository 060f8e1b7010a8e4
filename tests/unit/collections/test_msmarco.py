from __future__ import annotations

from pathlib import Path

import pytest

from isthmus.collections.formats.msmarco import Msmarco
from isthmus.records import Document, Query


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "collection.tsv").write_bytes(b"0\tfirst passage\r\n1\tsecond passage\r\n")
    (tmp_path / "queries.train.tsv").write_text("10\twhat is first\n")
    (tmp_path / "queries.dev.tsv").write_text("20\twhat is second\n")
    (tmp_path / "queries.dev.small.tsv").write_text("20\twhat is second\n")
    (tmp_path / "qrels.train.tsv").write_text("10\t0\t0\t1\n")
    (tmp_path / "qrels.dev.small.tsv").write_text("20\t0\t1\t1\n")
    return tmp_path


def test_folder_with_crlf_passages(folder: Path) -> None:
    found = Msmarco(folder)
    assert list(found.documents()) == [
        Document("0", "first passage"),
        Document("1", "second passage"),
    ]
    assert set(found.queries()) == {Query("10", "what is first"), Query("20", "what is second")}
    assert found.splits() == ["dev.small", "train"]
    assert found.judgements("dev.small") == {"20": {"1": 1}}


def test_documents_of_four_columns_have_titles(tmp_path: Path) -> None:
    (tmp_path / "docs.tsv").write_text("D1\thttp://a\tTitle\tBody text\n")
    assert list(Msmarco(tmp_path / "docs.tsv").documents()) == [
        Document("D1", "Body text", "Title")
    ]
