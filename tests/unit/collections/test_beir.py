from __future__ import annotations

import json
from pathlib import Path

import pytest

from isthmus.collections import Problems, open_collection
from isthmus.collections.formats.beir import Beir, write_beir
from isthmus.errors import InputError, SettingsError
from isthmus.records import Document, Query


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "tiny"
    (folder / "qrels").mkdir(parents=True)
    documents = [{"_id": "d1", "title": "T", "text": "one"}, {"_id": "d2", "text": "two"}]
    queries = [{"_id": "q1", "text": "which"}, {"_id": "q2", "text": "what"}]
    for name, records in (("corpus", documents), ("queries", queries)):
        lines = "".join(json.dumps(record) + "\n" for record in records)
        (folder / f"{name}.jsonl").write_text(lines, encoding="utf-8")
    header = "query-id\tcorpus-id\tscore\n"
    (folder / "qrels" / "test.tsv").write_text(f"{header}q1\td1\t1\n")
    (folder / "qrels" / "train.tsv").write_text(f"{header}q2\td2\t2\nq2\td1\t0\n")
    return folder


def test_everything_in_the_folder_is_read(folder: Path) -> None:
    found = Beir(folder)
    assert list(found.documents()) == [Document("d1", "one", "T"), Document("d2", "two")]
    assert list(found.queries()) == [Query("q1", "which"), Query("q2", "what")]
    assert found.splits() == ["test", "train"]
    assert found.judgements("train") == {"q2": {"d2": 2, "d1": 0}}


def test_metadata_is_written_and_read(folder: Path, tmp_path: Path) -> None:
    with (folder / "corpus.jsonl").open("a") as stream:
        stream.write(
            '{"_id": "d3", "text": "three", "year": 2020, "metadata": {"title": "inner"}}\n'
        )
    before = Beir(folder)
    write_beir(before, tmp_path / "copy")
    again = list(Beir(tmp_path / "copy").documents())
    assert again == list(before.documents())
    assert again[-1].metadata == {"title": "inner", "year": 2020}


def test_an_unknown_split_names_those_there_are(folder: Path) -> None:
    with pytest.raises(SettingsError, match="no split named 'tset'") as caught:
        Beir(folder).judgements("tset")
    assert caught.value.expected == "test, train"


def test_judgements_of_unknown_queries_are_a_problem(folder: Path) -> None:
    with (folder / "qrels" / "test.tsv").open("a") as stream:
        stream.write("q7\td1\t1\n")
    with pytest.raises(InputError, match="unknown query") as caught:
        Beir(folder).judgements("test")
    assert "test.tsv:3" in caught.value.what
    problems = Problems("skip")
    assert Beir(folder, problems).judgements("test") == {"q1": {"d1": 1}}
    assert problems.counts == {"unknown query": 1}


@pytest.mark.parametrize("name", ["corpus.jsonl", "queries.jsonl"])
def test_a_missing_file_is_named(name: str, folder: Path) -> None:
    (folder / name).unlink()
    with pytest.raises(InputError, match=f"there is no file '.*{name}'"):
        list(Beir(folder).queries())


def test_writing_any_collection_is_the_identity(folder: Path, tmp_path: Path) -> None:
    original = Beir(folder)
    write_beir(original, tmp_path / "copy")
    copy = open_collection(str(tmp_path / "copy"))
    assert list(copy.documents()) == list(original.documents())
    assert list(copy.queries()) == list(original.queries())
    assert copy.splits() == original.splits()
    for split in copy.splits():
        assert copy.judgements(split) == original.judgements(split)


@pytest.mark.parametrize(
    ("name", "documents", "empty", "judged"),
    [
        ("scifact", 5183, set(), {"train": 809, "test": 300}),
        ("cranfield", 1400, {"471", "995"}, {"test": 225}),
    ],
)
def test_real_collections(
    name: str, documents: int, empty: set[str], judged: dict[str, int], shared_data: Path
) -> None:
    problems = Problems("skip")
    found = open_collection(f"beir:{shared_data / 'collections' / name}", problems)
    ids = {document.id for document in found.documents()}
    assert len(ids | empty) == documents
    assert problems.counts.get("empty text", 0) == len(empty) == len(empty - ids)
    queries = {query.id for query in found.queries()}
    assert set(found.splits()) == set(judged)
    for split, count in judged.items():
        judgements = found.judgements(split)
        assert len(judgements) == count
        assert queries >= judgements.keys()
        assert ids | empty >= {document for judged in judgements.values() for document in judged}
    assert problems.counts.keys() <= {"empty text"}
