from __future__ import annotations

import datetime
import json
from pathlib import Path

import datasets
import pytest

from isthmus.collections import open_collection, open_corpus
from isthmus.collections.formats.hf import Hf
from isthmus.errors import InputError, SettingsError
from isthmus.records import Document, Query

ROWS = {"_id": ["a", "b"], "title": ["A", None], "text": ["one", "two"]}
EXPECTED = [Document("a", "one", "A"), Document("b", "two")]


def write(folder: Path, name: str, rows: list[dict[str, object]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_a_folder_of_parquet(tmp_path: Path) -> None:
    datasets.Dataset.from_dict(ROWS).to_parquet(tmp_path / "train.parquet")
    assert list(open_corpus(str(tmp_path)).documents()) == EXPECTED


def test_other_columns_are_metadata(tmp_path: Path) -> None:
    day = datetime.date(2020, 1, 31)
    others = {"year": [2020, None], "tags": [["x", "y"], []], "day": [day, day]}
    datasets.Dataset.from_dict(ROWS | others).to_parquet(tmp_path / "train.parquet")
    assert [found.metadata for found in open_corpus(str(tmp_path)).documents()] == [
        {"year": 2020, "tags": ["x", "y"], "day": "2020-01-31"},
        {"tags": [], "day": "2020-01-31"},
    ]


@pytest.mark.parametrize("several", [False, True])
def test_a_folder_saved_to_disk(several: bool, tmp_path: Path) -> None:
    dataset = datasets.Dataset.from_dict(ROWS)
    saved = datasets.DatasetDict(train=dataset) if several else dataset
    saved.save_to_disk(tmp_path / "saved")
    assert list(open_corpus(str(tmp_path / "saved")).documents()) == EXPECTED


def test_a_split_of_a_folder_of_jsonl_without_ids(tmp_path: Path) -> None:
    write(tmp_path, "train.jsonl", [{"content": "one"}])
    write(tmp_path, "test.jsonl", [{"content": "two"}, {"content": "three"}])
    assert list(open_corpus(f"hf:{tmp_path}:test").documents()) == [
        Document("0", "two"),
        Document("1", "three"),
    ]
    assert list(open_corpus(f"hf:{tmp_path}").documents()) == [Document("0", "one")]
    splits = [open_corpus(f"hf:{tmp_path}{split}") for split in ("", ":train", ":test")]
    assert len({split.fingerprint() for split in splits}) == 3  # an index of one is none of another
    with pytest.raises(SettingsError, match="no split named 'tset'"):
        list(open_corpus(f"hf:{tmp_path}:tset").documents())


def test_a_collection_as_mteb_publishes_it(tmp_path: Path) -> None:
    configurations = "".join(
        f"- config_name: {name}\n  data_files:\n"
        f"  - split: {split}\n    path: {name}/{split}.jsonl\n"
        for name, split in (("default", "test"), ("corpus", "corpus"), ("queries", "queries"))
    )
    (tmp_path / "README.md").write_text(f"---\nconfigs:\n{configurations}---\n")
    write(tmp_path / "corpus", "corpus.jsonl", [{"_id": "d", "title": "", "text": "one"}])
    write(tmp_path / "queries", "queries.jsonl", [{"_id": "q", "text": "which"}])
    write(tmp_path / "default", "test.jsonl", [{"query-id": "q", "corpus-id": "d", "score": 1.0}])
    found = open_collection(f"hf:{tmp_path}")
    assert list(found.documents()) == [Document("d", "one")]
    assert list(found.queries()) == [Query("q", "which")]
    assert found.splits() == ["test"]
    assert found.judgements("test") == {"q": {"d": 1}}
    twice = [{"query-id": "q", "corpus-id": "d", "score": score} for score in (1, 2)]
    write(tmp_path / "default", "test.jsonl", twice)
    with pytest.raises(InputError, match=r"are judged 2, but were judged 1 before"):
        open_collection(f"hf:{tmp_path}").judgements("test")
    before = found.fingerprint()
    write(tmp_path / "queries", "queries.jsonl", [{"_id": "q", "text": "changed"}])
    assert found.fingerprint() != before


def test_rows_alone_are_no_collection(tmp_path: Path) -> None:
    write(tmp_path, "train.jsonl", [{"text": "one"}])
    with pytest.raises(InputError, match="no queries and judgements"):
        open_collection(f"hf:{tmp_path}")
    with pytest.raises(InputError, match="has no queries"):
        list(Hf(str(tmp_path)).queries())
