from __future__ import annotations

from pathlib import Path

import pytest

from isthmus.collections.reported_splits import reported_by


@pytest.mark.parametrize(
    ("spec", "split", "expected"),
    [
        ("irds:msmarco-passage", "dev/small", "MS MARCO"),
        ("irds:msmarco-passage/dev/small", "small", "MS MARCO"),
        ("irds:msmarco-passage/dev", "dev", "MS MARCO"),
        ("irds:msmarco-passage-v2", "dev2", "MS MARCO"),
        ("irds:beir/msmarco", "dev", "MS MARCO"),
        ("irds:mmarco/v2/de", "dev/small", "MS MARCO"),
        ("irds:miracl/de", "dev", "MIRACL"),
        ("hf:mteb/msmarco", "dev", "MS MARCO"),
        ("hf:BeIR/msmarco", "validation", "MS MARCO"),
        ("beir:data/msmarco", "dev", "MS MARCO"),
        ("data/ms_marco/", "dev", "MS MARCO"),
        ("msmarco:data/passages", "dev.small", "MS MARCO"),
        ("irds:msmarco-passage", "train/judged", None),
        ("irds:msmarco-passage/train/split200-valid", "split200-valid", None),
        ("irds:beir/fiqa", "dev", None),
        ("irds:dpr-w100/natural-questions", "dev", None),
        ("hf:mteb/msmarco", "train", None),
        ("hf:mteb/fiqa", "dev", None),
        ("beir:data/fiqa", "dev", None),
        ("data/msmarco", "train", None),
        ("data/msmarco/fiqa", "dev", None),
        ("msmarco:data/passages", "dev", None),
    ],
)
def test_splits_that_papers_report_on(spec: str, split: str, expected: str | None) -> None:
    assert reported_by(spec, split) == expected


def test_a_file_goes_by_its_folder(tmp_path: Path) -> None:
    (tmp_path / "MSMARCO-v1").mkdir()
    (tmp_path / "MSMARCO-v1" / "collection.tsv").write_text("1\tone\n")
    assert reported_by(str(tmp_path / "MSMARCO-v1" / "collection.tsv"), "dev") == "MS MARCO"
