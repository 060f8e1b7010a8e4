"""What an earlier version wrote (written_before.tar.xz) resumes and answers as it did there."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_matrix

import isthmus
from isthmus.indexes.segments.index import open_index

ARCHIVE = Path(__file__).with_name("written_before.tar.xz")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of `retromae` up to its second of four steps, and an index of every kind."""
    folder = tmp_path_factory.mktemp("before")
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.fixture(scope="module")
def known(place: Path) -> dict[str, Any]:
    """What the earlier version logged when it trained to the end, and what its indexes answered."""
    values: dict[str, Any] = json.loads((place / "answers.json").read_text(encoding="utf-8"))
    return values


def test_a_checkpoint_resumes(
    place: Path, known: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(place)
    isthmus.pretrain(resume="run")
    assert "resume from run/checkpoint-2" in capsys.readouterr().err
    results = json.loads(Path("run/isthmus.json").read_text(encoding="utf-8"))["results"]
    log = [line for line in results["log"] if "loss" in line]
    assert [line["step"] for line in log] == [1, 2, 3, 4]
    for line, expected in zip(log, known["log"], strict=True):
        assert {name: line[name] for name in expected} == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("kind", ["dense", "segments", "inverted", "bm25"])
def test_an_index_answers(place: Path, known: dict[str, Any], kind: str) -> None:
    queries, answers = (known["indexes"][kind][name] for name in ("queries", "answers"))
    if kind != "bm25":
        queries = np.array(queries, dtype=np.float32)
    if kind == "inverted":
        queries = csr_matrix(queries)
    found = open_index(place / kind).search(queries, 5, ["a", "b", "c"])
    for ranking, expected in zip(found, answers, strict=True):
        assert [document for document, _ in ranking] == [document for document, _ in expected]
        assert list(ranking.scores) == pytest.approx([score for _, score in expected])
