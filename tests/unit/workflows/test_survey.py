"""What is said, or refused, about documents before an encoder learns them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from isthmus.collections import open_corpus
from isthmus.errors import InputError
from isthmus.workflows.adapt_report import survey

ENGLISH = "The cell number {} is the one that divides, and the other rests for a day."
CHINESE = "第{}个细胞在今天的实验中分裂得很快而另一个在休息"


def found(tmp_path: Path, texts: list[str], title: str = "") -> str:
    file = tmp_path / "corpus.jsonl"
    lines = [
        json.dumps({"_id": str(n), "text": text, "title": title}) for n, text in enumerate(texts)
    ]
    file.write_text("\n".join(lines), encoding="utf-8")
    return survey(open_corpus(str(file)), str(file))


def test_good_documents(tmp_path: Path) -> None:
    said = found(tmp_path, [ENGLISH.format(n) for n in range(60)])
    assert said == "60 documents, 16 words in the middle one"


def test_documents_without_spaces_are_measured_by_characters(tmp_path: Path) -> None:
    assert "60 documents" in found(tmp_path, [CHINESE.format(n) for n in range(60)])
    with pytest.raises(InputError, match="are too short"):
        found(tmp_path, [f"细胞{n}" for n in range(60)])


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ([ENGLISH.format(n) for n in range(20)], "20 documents are too few"),
        ([f"word {n}" for n in range(60)], "documents of 2.0 words are too short"),
        ([ENGLISH.format(n % 20) for n in range(60)], "67% of the documents are copies"),
    ],
)
def test_refused(tmp_path: Path, texts: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        found(tmp_path, texts)
