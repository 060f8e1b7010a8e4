"""What is said, or refused, about documents before an encoder learns them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from isthmus.collections import open_corpus
from isthmus.errors import InputError
from isthmus.workflows.survey import survey

ENGLISH = "The cell number {} is the one that divides, and the other rests for a day."
GERMAN = "Die Zelle Nummer {} ist nicht die, mit der das Experiment von heute beginnt."
CHINESE = "第{}个细胞在今天的实验中分裂得很快而另一个在休息"


def found(tmp_path: Path, texts: list[str]) -> str:
    file = tmp_path / "corpus.jsonl"
    lines = [json.dumps({"_id": str(n), "text": text}) for n, text in enumerate(texts)]
    file.write_text("\n".join(lines), encoding="utf-8")
    return survey(open_corpus(str(file)), str(file))


def test_good_documents(tmp_path: Path) -> None:
    said = found(tmp_path, [ENGLISH.format(n) for n in range(60)])
    assert said == "60 documents, 16 words in the middle one"


def test_unspaced_scripts_are_not_short(tmp_path: Path) -> None:
    assert "60 documents" in found(tmp_path, [CHINESE.format(n) for n in range(60)])


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


@pytest.mark.parametrize("other", [GERMAN, CHINESE])
def test_several_languages(tmp_path: Path, other: str) -> None:
    texts = [(other if n % 3 == 0 else ENGLISH).format(n) for n in range(60)]
    assert "SEVERAL LANGUAGES (English 67%, " in found(tmp_path, texts)
