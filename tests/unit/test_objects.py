"""What a notebook holds: an index of documents in memory, hits with their texts, plain dicts."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.factories import write_collection, write_encoder

import isthmus
from isthmus import Document, encoders, progress
from isthmus.errors import InputError

TEXTS = ["Bees make honey.", "Cats sleep all day.", "A river runs to the sea."]


@pytest.mark.parametrize(
    "documents",
    [
        TEXTS,
        [{"id": str(number), "text": text} for number, text in enumerate(TEXTS)],
        [{"text": text, "author": "nobody"} for text in TEXTS],
        [Document(str(number), text) for number, text in enumerate(TEXTS)],
        (text for text in TEXTS),
        {str(number): text for number, text in enumerate(TEXTS)},
        [{"docno": number, "contents": text} for number, text in enumerate(TEXTS)],
    ],
    ids=["texts", "mappings", "without ids", "documents", "generator", "by id", "as TREC"],
)
def test_documents_in_memory_are_indexed(documents: object, tmp_path: Path) -> None:
    index = isthmus.index(documents, tmp_path / "idx")  # type: ignore[arg-type]
    assert len(index) == 3
    assert "1" in index
    assert "7" not in index
    found = index["1"]
    assert (found.id, found.text, found.title) == ("1", TEXTS[1], "")
    assert found.metadata in ({}, {"author": "nobody"})
    with pytest.raises(KeyError):
        index["7"]
    (hit,) = index.search("honey", k=5)
    assert (hit.id, hit.text) == ("0", TEXTS[0])
    assert index.names == ["bm25"]
    assert list(index) == ["0", "1", "2"]


def test_an_index_changes_and_sees_its_changes(tmp_path: Path) -> None:
    index = isthmus.index(TEXTS, tmp_path / "idx")
    assert index.search("volcano") == []
    index.add([{"id": "new", "text": "A volcano."}])
    assert [hit.id for hit in index.search("volcano")] == ["new"]
    index.delete(["new", "0"])
    assert len(index) == 2
    with pytest.raises(InputError, match="give it an id"):
        index.add(["a text without an id"])
    done = index.sync([{"id": "2", "text": "A river."}, {"id": "9", "text": "Honey."}])
    assert (done.added, done.changed, done.deleted) == (("9",), ("2",), ("1",))
    assert [hit.id for hit in index.search("honey")] == ["9"]
    isthmus.open_index(tmp_path / "idx").delete(["9"])
    assert [hit.id for hit in index.search("honey")] == ["9"], "it keeps what it opened"
    index.refresh()
    assert index.search("honey") == []


def test_many_queries_are_a_run_that_can_be_measured(tmp_path: Path) -> None:
    index = isthmus.index(TEXTS, tmp_path / "idx")
    with pytest.raises(InputError, match="to search_many"):
        index.search({"q1": "honey"})  # type: ignore[arg-type]
    run = index.search_many({"q1": "honey", "q2": "the river"}, k=2)
    assert {query: list(found) for query, found in run.items()} == {"q1": ["0"], "q2": ["2"]}
    report = isthmus.evaluate({"q1": {"0": 1}, "q2": {"1": 1}}, [run], measures=["RR@10"])
    assert [*report.means["RR@10"].values()] == [0.5]


def test_what_is_no_document_is_named(tmp_path: Path) -> None:
    class Frame:
        columns = ("id", "text")

    for wrong in ([1], ["a", None], 7, Frame()):
        with pytest.raises(InputError, match="cannot be read"):
            isthmus.index(wrong, tmp_path / "idx")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="there is no index"):
        isthmus.open_index(tmp_path / "x").search("a query")


def test_an_encoder_is_loaded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = write_encoder(tmp_path / "model", TEXTS * 9, 90, document_max_length=64)
    isthmus.index(TEXTS, tmp_path / "idx", str(model))
    loaded: list[str] = []
    plain = encoders.load_query_encoder

    def load(name: str, *rest: object) -> object:
        loaded.append(name)
        return plain(name, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(encoders, "load_query_encoder", load)
    for _ in range(3):
        isthmus.open_index(tmp_path / "idx").search("honey")
    assert loaded == [str(model)]


def test_progress_can_be_switched_off(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    progress.off()
    try:
        isthmus.index(TEXTS, tmp_path / "quiet")
    finally:
        progress.on()
    assert capsys.readouterr().err == ""
    isthmus.index(TEXTS, tmp_path / "loud")
    assert "indexing" in capsys.readouterr().err


def test_an_encoder_takes_a_list_of_texts(tmp_path: Path) -> None:
    model = write_encoder(tmp_path / "model", TEXTS * 9, 90, document_max_length=64)
    encoder = isthmus.load_encoder(str(model))
    vectors = encoder.encode(TEXTS)
    assert vectors.shape == (3, encoder.dimension)
    same = encoder.encode([Document(text[:3], text) for text in TEXTS])
    assert (vectors == same).all()
    for encode in (encoder.encode, encoder.encode_queries):
        with pytest.raises(InputError, match="cannot be encoded"):
            encode("one text")


def test_an_opened_collection_is_taken_where_its_name_is(tmp_path: Path) -> None:
    pairs = {"test": [("q", "0")], "dev": [("q", "0")]}
    folder = write_collection(tmp_path / "judged", dict(enumerate(TEXTS)), {"q": "honey"}, pairs)
    opened = isthmus.open_collection(str(folder))
    index = isthmus.index(opened, tmp_path / "idx")
    report = isthmus.evaluate(opened, ["bm25", index], measures=["RR@10"])
    assert [*report.means["RR@10"].values()] == [1.0, 1.0]
    assert str(folder) in repr(opened)


def test_long_hits_keep_their_ranks_and_scores(tmp_path: Path) -> None:
    hits = isthmus.index([f"Bees make honey. {'word ' * 90}"] * 12, tmp_path / "idx").search("bees")
    first = repr(hits).splitlines()[0].split()
    assert first[0] == "1"
    assert float(first[1]) == round(hits[0].score, 3)


def test_documents_in_memory_are_called_that(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    index = isthmus.index(TEXTS, tmp_path / "idx")
    assert "indexing documents in memory" in capsys.readouterr().err
    with pytest.raises(InputError, match="has no document '99'"):
        index.explain("honey", "99")
