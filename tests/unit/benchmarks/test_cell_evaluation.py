"""What the tests of all cells of a benchmark share."""

from __future__ import annotations

from pathlib import Path

import pytest

from isthmus.benchmarks.runner.cell_evaluation import _encoder, _judged, _Remembering
from isthmus.encoders import DenseEncoder, DenseSettings, SparseEncoder, SparseSettings
from isthmus.nn.sizes import new_backbone
from isthmus.text.new_tokenizer import new_tokenizer

TEXTS = ["the cat sat", "", "the cat sat", "a dog ate the cat that sat there, über all"]


def test_questions_with_answers_and_no_judged_passages_count(tmp_path: Path) -> None:
    (tmp_path / "psgs_w100.tsv").write_text("id\ttext\ttitle\n1\ta city\tParis\n")
    (tmp_path / "nq-test.qa.csv").write_text("which\t['Paris']\nwhere\t['France']\n")
    queries, judged = _judged(f"dpr:{tmp_path}", "nq-test")
    assert [query.text for query in queries] == ["which", "where"]
    assert judged.answers == {"nq-test-0": ["Paris"], "nq-test-1": ["France"]}


def test_a_text_that_is_remembered_is_read_as_before() -> None:
    plain = new_tokenizer(TEXTS, 80)
    for texts in (TEXTS, [TEXTS[-1], "the dog"]):
        remembering = _Remembering(plain.pretrained)
        assert remembering.encode(texts, 8) == plain.encode(texts, 8)
        assert [*map(len, remembering.split(texts))] == [*map(len, plain.split(texts))]


@pytest.mark.parametrize("kind", ["dense", "sparse", ""])
def test_a_start_is_tested_as_what_its_column_compares(kind: str, tmp_path: Path) -> None:
    """LexMAE leaves a sparse encoder: in a dense column its [CLS] is compared."""
    tokenizer = new_tokenizer(TEXTS, 80)
    backbone = new_backbone("tiny", len(tokenizer), tokenizer.pad_id, max_length=144, seed=0)
    settings = SparseSettings(query_max_length=9, document_max_length=17, query_terms=5)
    SparseEncoder(backbone, tokenizer, settings).save(tmp_path)
    found = _encoder(str(tmp_path), kind)
    assert type(found) is (DenseEncoder if kind == "dense" else SparseEncoder)
    if isinstance(found.settings, DenseSettings):
        assert (found.settings.pooling, found.settings.similarity) == ("cls", "dot")
    else:
        assert found.settings == settings
    read = found.settings.query_max_length, found.settings.document_max_length
    assert read == (9, 17)
    (tmp_path / "encoder.json").unlink()
    plain = _encoder(str(tmp_path), kind)
    assert type(plain) is (SparseEncoder if kind == "sparse" else DenseEncoder)
