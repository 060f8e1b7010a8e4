"""What names a system, what is searched for it, and what is found again instead."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.factories import write_corpus

from isthmus.collections import open_corpus
from isthmus.errors import InputError, SettingsError
from isthmus.records import Query
from isthmus.retrieval.index import BM25
from isthmus.workflows.systems import Searches, systems


def test_what_is_kept_is_of_the_same_corpus_and_queries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ISTHMUS_CACHE", str(tmp_path / "cache"))

    def found(corpus: Path, text: str) -> tuple[str, ...]:
        fingerprint = open_corpus(str(corpus)).fingerprint()
        asked = Searches(str(corpus), fingerprint, [Query("q", text)], 5)
        return asked.rankings(BM25)["q"].document_ids

    one, other = (
        write_corpus(tmp_path / f"{name}.jsonl", {f"{name}0": "river bank", f"{name}1": "snow"})
        for name in "ab"
    )
    assert [found(one, "bank"), found(one, "snow"), found(other, "snow")] == [
        ("a0",), ("a1",), ("b1",),
    ]  # fmt: skip
    assert capsys.readouterr().err.count("is in the cache") == 1, "of the second query"
    assert found(one, "bank") == ("a0",)
    assert "its index is in the cache" in capsys.readouterr().err


def test_names(tmp_path: Path) -> None:
    (tmp_path / "bm25.trec").touch()
    (tmp_path / "other.trec").touch()
    given = [BM25, "runs/dense", "runs/dense+bm25", "package:gt-mini", "bm25+bm25", "runs/dense"]
    assert [one.name for one in systems(given)] == [
        "bm25", "dense", "dense+bm25", "gt-mini", "bm25+bm25",
    ]  # fmt: skip
    files = [str(tmp_path / "bm25.trec"), tmp_path / "other.trec", BM25]
    assert [one.name for one in systems(files)] == [str(tmp_path / "bm25.trec"), "other", "bm25"]
    runs = [{"q": {"d": 1.0}}, {"q": {"e": 1.0}}]
    assert [one.name for one in systems(runs)] == ["run", "run 2"]
    assert [one.name for one in systems({"mine": runs[0], "fused": (BM25, "m")})] == [
        "mine", "fused",
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["bm26", "dense+Bm2"])
def test_a_misspelt_system_is_not_looked_for_on_the_hub(name: str) -> None:
    with pytest.raises(SettingsError, match="there is no system named") as caught:
        systems([name])
    assert caught.value.fix.startswith("write bm25")


@pytest.mark.parametrize("wrong", [3, {"q": 1.0}, "a++b"])
def test_what_names_no_system_is_refused(wrong: object) -> None:
    with pytest.raises((InputError, SettingsError)):
        systems([wrong])  # type: ignore[list-item]


def test_models_of_the_hub_are_no_misspelt_systems() -> None:
    names = ["bert-base-uncased", "BAAI/bge-m3", "castorini/bm25"]
    assert [one.parts for one in systems(names)] == [(name,) for name in names]
