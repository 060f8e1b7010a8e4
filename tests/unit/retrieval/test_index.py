"""What `index` builds, reuses, resumes, fills in, replaces and refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.index_bytes import verify

from isthmus.errors import InputError, MismatchError, OutputError, SettingsError
from isthmus.indexes.index import Index
from isthmus.indexes.manifest import MANIFEST, SparseField, read_manifest
from isthmus.indexes.writer import IndexWriter
from isthmus.records import Passage
from isthmus.retrieval.change import delete
from isthmus.retrieval.index import IndexSettings, index
from isthmus.retrieval.search import SearchSettings, search


def said(capsys: pytest.CaptureFixture[str]) -> str:
    return " ".join(capsys.readouterr().err.split())


def test_words_alone_and_words_with_vectors(corpus: str, tmp_path: Path, encoder: Any) -> None:
    words = read_manifest(index(corpus, tmp_path / "words"))
    assert (list(words.fields), words.documents, words.passages) == (["bm25"], 5, None)
    (tmp_path / "model").mkdir()
    found = read_manifest(index(corpus, tmp_path / "both", f"{tmp_path}/./model"))
    assert list(found.fields) == ["bm25", "dense", "tokens"]
    assert found.encoders["dense"].name == str(tmp_path / "model")
    assert encoder.encoded == 5, "each text once"
    alone = index(corpus, tmp_path / "alone", "model", settings={"bm25": False})
    assert list(read_manifest(alone).fields) == ["dense", "tokens"]
    vector = index(corpus, tmp_path / "vector", "model", settings={"tokens": False})
    assert list(read_manifest(vector).fields) == ["bm25", "dense"]


def test_one_encoder_fills_several_sizes(corpus: str, tmp_path: Path, sparse_encoder: Any) -> None:
    folder = index(corpus, tmp_path / "index", "model", settings={"sparse_sizes": [1, 2]})
    manifest = read_manifest(folder)
    assert list(manifest.fields) == ["bm25", "sparse", "sparse-1", "sparse-2"]
    assert sparse_encoder.encoded == 5
    sizes = [f.settings.terms for f in manifest.fields.values() if isinstance(f, SparseField)]
    assert sizes == [None, 1, 2]
    for weights in (None, {"bm25": 2.0}):  # sizes are searched by their names alone
        assert len(search(folder, "river", settings=SearchSettings(weights=weights))) == 2
        assert sparse_encoder.encoded == 5
    hits = [search(folder, "boat river", settings=SearchSettings(use=n)) for n in manifest.fields]
    assert {hit.id for hit in hits[1]} == {"d0", "d2"}


def test_long_documents_are_cut_for_vectors_and_whole_for_words(
    tmp_path: Path, encoder: Any
) -> None:
    text = "The river is long. " * 8 + "A glacier melts. " * 8
    corpus = tmp_path / "long.jsonl"
    corpus.write_text(json.dumps({"_id": "a", "text": text}) + '\n{"_id": "b", "text": "snow"}\n')
    folder = index(str(corpus), tmp_path / "index", "model")
    (segment,) = read_manifest(folder).segments
    assert segment.passages is not None
    assert segment.passages > 4
    (hit, *_) = search(folder, "glacier melts.", settings=SearchSettings(use="dense"))
    assert hit.passage is not None
    assert "glacier" in hit.passage.text
    assert "river" not in hit.passage.text
    assert text[hit.passage.start : hit.passage.end] == hit.passage.text
    (hit,) = search(folder, "glacier", settings=SearchSettings(use="bm25"))
    assert (hit.passage, hit.text) == (None, text)
    passages = search(folder, "river", settings=SearchSettings(by="passage", k=3))
    assert len(passages) == 3
    assert all(isinstance(one.passage, Passage) and one.id == one.passage.id for one in passages)
    whole = index(str(corpus), tmp_path / "whole", "model", settings={"passages": False})
    assert read_manifest(whole).passages is None
    with pytest.raises(MismatchError, match="by = passage"):
        search(whole, "river", settings=SearchSettings(by="passage"))
    with pytest.raises(OutputError, match="differs in passages"):
        index(str(corpus), whole, "model", settings={"passages": True})


def test_the_same_index_is_reused_and_another_refused(
    corpus: str, folder: Path, encoder: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    index(corpus, folder, "model")
    assert encoder.encoded == 5
    assert "nothing to do" in said(capsys)
    with pytest.raises(OutputError, match="another index: it differs in fields") as caught:
        index(corpus, folder, settings={"bm25.k1": 2.0})
    assert "--overwrite" in caught.value.fix
    with Path(corpus).open("a") as stream:
        stream.write('{"_id": "d9", "text": "more"}\n')
    with pytest.raises(OutputError, match="differs in corpus") as caught:
        index(corpus, folder)
    assert "isthmus sync" in caught.value.fix


def test_a_field_is_added_to_an_index_that_is_there(
    corpus: str, folder: Path, encoder: Any, tmp_path: Path
) -> None:
    grown = index(corpus, tmp_path / "grown")
    delete(grown, ["d4"])
    with pytest.raises(OutputError, match="differs in corpus"):
        index(corpus, grown, "model")
    words = index(corpus, tmp_path / "words")
    index(corpus, words, "model")
    assert encoder.encoded == 10
    verify(words)
    asked = [search(one, "river bank") for one in (words, folder)]
    assert asked[0] == asked[1]
    encoder.fingerprint = "words-2"
    index(corpus, words, "words")
    assert list(read_manifest(words).fields) == ["bm25", "dense", "tokens", "words", "words-tokens"]
    assert search(words, "snow", settings=SearchSettings(use="words"))[0].id == "d4"


def test_overwriting_leaves_readers_what_they_opened_and_no_old_file(
    corpus: str, folder: Path, more: str
) -> None:
    before = Index.open(folder)
    built = (folder / MANIFEST).read_bytes()
    index(corpus, folder, "model", overwrite=True)
    assert (folder / MANIFEST).read_bytes() == built, "the same index is left as it is"
    with IndexWriter(folder), pytest.raises(OutputError, match="another process"):
        index(more, folder, overwrite=True)
    index(more, folder, overwrite=True)
    assert verify(folder).documents == 3
    assert [one.name for one in (folder / "segments").iterdir()] == ["000002"]
    assert before.search("bm25", ["snow"], 1, ["q"])[0].document_ids == ("d4",)
    assert before.document("d4") is not None


@pytest.mark.parametrize("file", [MANIFEST, "segments/000001/dense/vectors.npy"])
def test_what_is_damaged_is_replaced(corpus: str, folder: Path, file: str) -> None:
    (folder / file).write_bytes(b"damaged")
    with pytest.raises(InputError, match="damaged"):
        index(corpus, folder, "model")
    index(corpus, folder, "model", overwrite=True)
    assert verify(folder).documents == 5


def test_outputs_that_are_no_indexes_are_left_alone(corpus: str, tmp_path: Path) -> None:
    with pytest.raises(InputError):
        index(str(tmp_path / "missing.jsonl"), tmp_path / "index")
    for overwrite in (False, True):
        with pytest.raises(OutputError, match="already holds something"):
            index(corpus, tmp_path, overwrite=overwrite)
        with pytest.raises(OutputError, match="is a file"):
            index(corpus, corpus, overwrite=overwrite)


def test_an_index_through_a_link_lies_where_it_leads(corpus: str, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    index(corpus, tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert verify(tmp_path / "disk").documents == 5


def test_nothing_to_search_for_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "corpus.jsonl"
    file.write_text('{"_id": "a", "text": "the of"}\n{"_id": "b", "text": "?"}\n')
    with pytest.raises(InputError, match="has a word to search for"):
        index(str(file), tmp_path / "index")


def test_titles_are_the_encoders_choice(corpus: str, tmp_path: Path, encoder: Any) -> None:
    with pytest.raises(MismatchError, match="was trained with titles = True"):
        index(corpus, tmp_path / "index", "model", settings=IndexSettings(titles=False))


def test_skipped_documents_are_counted(
    corpus: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Path(corpus).open("a") as stream:
        stream.write('{"_id": "d0", "text": "again"}\n')
    with pytest.raises(InputError, match="duplicate id"):
        index(corpus, tmp_path / "index")
    index(corpus, tmp_path / "index", settings=IndexSettings(problems="skip"))
    assert "skipped 1 x duplicate id" in said(capsys)
    assert read_manifest(tmp_path / "index").documents == 5


@pytest.mark.parametrize(("common", "alike"), [(200, True), (3, False)])
def test_vectors_that_hardly_differ_are_told(
    common: int, alike: bool, tmp_path: Path, encoder: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = [f"{'the ' * common}w{number}" for number in range(20)]
    lines = [json.dumps({"_id": str(number), "text": text}) for number, text in enumerate(texts)]
    (tmp_path / "corpus.jsonl").write_text("\n".join(lines))
    settings = {"passages": False}
    index(str(tmp_path / "corpus.jsonl"), tmp_path / "index", "model", settings=settings)
    assert ("20 documents have nearly the same vector" in said(capsys)) == alike


def test_a_language_is_named_kept_and_refused_without_bm25(
    tmp_path: Path, encoder: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    def language(folder: Path) -> str:
        return read_manifest(folder).fields["bm25"].settings.language  # type: ignore[union-attr]

    texts = [
        "Das System fragt Sie an diesem Punkt, ob Sie einen Benutzer anlegen wollen.",
        "Die Häuser an der Straße sind nicht mit dem Auto zu erreichen.",
    ]
    lines = [json.dumps({"_id": f"d{n}", "text": text}) for n, text in enumerate(texts)]
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("\n".join(lines), encoding="utf-8")
    assert language(index(str(corpus), tmp_path / "unnamed")) == "english"
    assert "looks German: --language german stems" in said(capsys)
    german = index(str(corpus), tmp_path / "german", language="german")
    assert [hit.id for hit in search(german, "haus")] == ["d1"]
    index(str(corpus), german)  # the index knows it
    assert language(german) == "german"
    with pytest.raises(SettingsError, match="--language de is of BM25"):
        index(str(corpus), tmp_path / "d", "model", language="de", settings={"bm25": False})
