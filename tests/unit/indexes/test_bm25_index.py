"""BM25 at the edges: no terms, ties, depths, and what may not be loaded."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.factories import documents
from tests.index_bytes import verify

from isthmus.config.sealed_json import sealed
from isthmus.errors import InputError, SettingsError
from isthmus.indexes.bm25 import Analyzer, Bm25Index
from isthmus.indexes.integrity import described
from isthmus.indexes.manifest import Bm25Settings
from isthmus.records import Document, Ranking

DOCUMENTS = documents()

Build = Callable[..., Bm25Index]


def test_finds_what_shares_a_term(build_bm25: Build) -> None:
    index = build_bm25(DOCUMENTS)
    (ranking,) = index.search(["Rivers and banks"], 1000, ["q"])
    texts = {document.id: document.text for document in DOCUMENTS}
    assert len(ranking) == 30
    assert all(score > 0 for score in ranking.scores)
    assert {texts[document_id] for document_id in ranking.document_ids[:10]} == {
        "the bank of a river"
    }


def test_ties_go_by_document_id(build_bm25: Build) -> None:
    index = build_bm25([Document(f"d{row * 7 % 20:02}", "same words here") for row in range(20)])
    (ranking,) = index.search(["words"], 5, ["q"])
    assert ranking.document_ids == ("d00", "d01", "d02", "d03", "d04")


def test_unknown_terms_give_an_empty_ranking(build_bm25: Build) -> None:
    index = build_bm25([Document("a", "one text"), Document("b", "")])
    rankings = index.search(["zebra", "the of", "", "text"], 10, list("wxyz"))
    assert rankings[:3] == [Ranking("w"), Ranking("x"), Ranking("y")]
    assert rankings[3].document_ids == ("a",)
    assert index.has_tokens("zebra")
    assert not index.has_tokens("the of")


def test_titles_are_searched_when_told(build_bm25: Build) -> None:
    source = [Document("a", "text", "headline"), Document("b", "more text")]
    assert build_bm25(source).search(["headline"], 10, ["q"])[0].document_ids == ("a",)
    without = build_bm25(source, "without", titles=False)
    assert without.search(["headline"], 10, ["q"]) == [Ranking("q")]
    assert without.store.document(0).title == "headline"


def test_analysis_follows_the_settings(build_bm25: Build) -> None:
    source = [Document("a", "the connection"), Document("b", "connected")]
    default = build_bm25(source)
    literal = build_bm25(source, "literal", stemmer="none", stopwords="none")
    assert len(default.search(["connecting"], 10, ["q"])[0]) == 2
    assert literal.search(["connecting"], 10, ["q"]) == [Ranking("q")]
    assert literal.search(["the"], 10, ["q"])[0].document_ids == ("a",)
    assert literal.manifest.bm25 == Bm25Settings(stemmer="none", stopwords="none")


def test_terms_keep_order_and_repetitions() -> None:
    assert Analyzer(Bm25Settings()).terms("The CATS, a cat & naïve-ity x") == [
        "cat", "cat", "naïv", "iti",
    ]  # fmt: skip


def test_two_builds_are_byte_identical(build_bm25: Build, tmp_path: Path) -> None:
    build_bm25(DOCUMENTS, "one")
    build_bm25(DOCUMENTS, "two")
    for file in (tmp_path / "one").iterdir():
        assert file.read_bytes() == (tmp_path / "two" / file.name).read_bytes()
    verify(tmp_path / "one")


def test_pickles_are_refused(build_bm25: Build, tmp_path: Path) -> None:
    build_bm25([Document("a", "one text")])
    file = tmp_path / "bm25" / "data.csc.index.npy"
    np.save(file, np.array([{"any": "object"}], dtype=object), allow_pickle=True)
    manifest = json.loads((tmp_path / "bm25" / "manifest.json").read_text())
    manifest["files"] |= {file.name: described(file.parent, [file.name])[file.name].model_dump()}
    (tmp_path / "bm25" / "manifest.json").write_text(json.dumps(sealed(manifest)))
    with pytest.raises(InputError, match=r"damaged.*([Pp]ython objects|allow_pickle)"):
        Bm25Index.open(tmp_path / "bm25")


def test_nothing_to_index_is_refused(build_bm25: Build, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no documents"):
        build_bm25([])
    with pytest.raises(InputError, match="has a word to search for") as caught:
        build_bm25([Document("a", "the of"), Document("b", "?")])
    assert "bm25.stopwords=none" in caught.value.fix
    assert not (tmp_path / "bm25").exists()


@pytest.mark.parametrize("values", [{"b": 1.5}, {"k1": -1.0}, {"stemmer": "englsh"}])
def test_impossible_settings_are_refused(values: dict[str, object]) -> None:
    with pytest.raises(SettingsError) as caught:
        Bm25Settings.parse(values, where="recipe")
    assert next(iter(values)) in caught.value.what
