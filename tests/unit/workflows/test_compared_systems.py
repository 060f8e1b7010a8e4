"""Rankings of compared systems are kept, and are those of this corpus and these queries."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.factories import write_corpus

from isthmus.collections import open_corpus
from isthmus.errors import SettingsError
from isthmus.records import Query
from isthmus.retrieval.verbs.index import BM25, IndexSettings
from isthmus.workflows.compared_systems import Searches, systems


def test_what_is_kept_is_of_the_same_corpus_and_queries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ISTHMUS_CACHE", str(tmp_path / "cache"))

    def found(corpus: Path, text: str) -> tuple[str, ...]:
        fingerprint = open_corpus(str(corpus)).fingerprint()
        asked = Searches(str(corpus), fingerprint, [Query("q", text)], 5, IndexSettings())
        return asked.rankings(BM25, asked.origin(BM25))["q"].document_ids

    one, other = (
        write_corpus(tmp_path / f"{name}.jsonl", {f"{name}0": "river bank", f"{name}1": "snow"})
        for name in "ab"
    )
    assert [found(one, "bank"), found(one, "snow"), found(other, "snow")] == [
        ("a0",), ("a1",), ("b1",),
    ]  # fmt: skip
    assert "in the cache" not in capsys.readouterr().err
    assert found(one, "bank") == ("a0",)
    assert "its rankings are in the cache" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "meant"), [("bm26", "bm25"), ("bm25+Hybird", "hybrid")])
def test_a_misspelt_system_is_not_looked_for_on_the_hub(name: str, meant: str) -> None:
    with pytest.raises(SettingsError, match="there is no system named") as caught:
        systems([name])
    assert caught.value.fix.startswith(f"write {meant}")


def test_models_of_the_hub_are_no_misspelt_systems() -> None:
    names = ["bert-base-uncased", "BAAI/bge-m3", "castorini/bm25"]
    assert [one.parts for one in systems(names)] == [(name,) for name in names]
