"""DPR's files, and top-k answer accuracy over them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

import isthmus
from isthmus.api import search
from isthmus.collections import Problems, open_collection, open_queries
from isthmus.collections.formats.dpr import Dpr
from isthmus.errors import InputError, SettingsError
from isthmus.records import Document, Query, Ranking, Run

PASSAGES = (
    "id\ttext\ttitle\n"
    '1\t"The ""Eiffel"" tower stands in Paris, France"\tEiffel Tower\n'
    "2\tBerlin is the capital of Germany\tBerlin\n"
    "3\tRivers of Germany flow north\tRivers\n"
)
TRAINING = [
    {"question": "where is the tower", "answers": ["Paris"],
     "positive_ctxs": [{"passage_id": "1", "text": "x"}], "hard_negative_ctxs": [{"psg_id": "2"}]},
    {"question": "capital of germany", "answers": ["Berlin"], "positive_ctxs": [{"psg_id": 2}]},
    {"question": "unknown", "answers": ["?"], "positive_ctxs": []},
]  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "dpr"
    (folder / "retriever" / "qas").mkdir(parents=True)
    (folder / "psgs_w100.tsv.gz").write_bytes(gzip.compress(PASSAGES.encode()))
    retriever = folder / "retriever"
    (retriever / "biencoder-nq-train.json").write_text(json.dumps(TRAINING, indent=4))
    (retriever / "qas" / "nq-dev.qa.csv").write_text("of all questions\t['Paris', \"it's\"]\n")
    (retriever / "qas" / "nq-train.qa.csv").write_text("the same again\t['Paris']\n")
    lines = (
        "where is the tower\t['paris']\ncapital of Germany\t[\"Bonn\"]\nrivers\t['flow north']\n"
    )
    (retriever / "nq-test.qa.csv").write_text(lines)
    (folder / "isthmus.json").write_text('{"verb": "index"}')
    return folder


def test_every_kind_of_file_is_read(folder: Path) -> None:
    found = open_collection(str(folder))
    assert isinstance(found, Dpr)
    first = Document("1", 'The "Eiffel" tower stands in Paris, France', "Eiffel Tower")
    assert next(found.documents()) == first
    assert found.splits() == ["nq-dev", "nq-test", "nq-train"]
    assert found.judgements("nq-train") == {"nq-train-0": {"1": 1}, "nq-train-1": {"2": 1}}
    assert found.answers("nq-train")["nq-train-2"] == ["?"]
    assert found.answers("nq-dev") == {"nq-dev-0": ["Paris", "it's"]}
    assert found.judgements("nq-test") == {}
    assert Query("nq-test-2", "rivers") in list(found.queries())
    assert [query.id for query in open_queries(str(folder), "nq-train")] == [
        "nq-train-0", "nq-train-1",
    ]  # fmt: skip


def test_a_split_of_answers_is_searched_and_counted(folder: Path, tmp_path: Path) -> None:
    isthmus.index(str(folder), tmp_path / "index")
    run = tmp_path / "bm25.trec"
    search(tmp_path / "index", queries=str(folder), split="nq-test", output=run)
    report = isthmus.evaluate(str(folder), run, split="nq-test", output=tmp_path / "report")
    assert report.measures == ("Answer@5", "Answer@20", "Answer@100")
    assert report.means["Answer@20"]["bm25"] == pytest.approx(2 / 3)  # nothing says Bonn
    assert report.per_query["Answer@5"]["bm25"]["nq-test-1"] == 0.0
    assert "Not one document" not in report.table().caption
    both = isthmus.evaluate(str(folder), run, split="nq-test", measures="Answer@1")
    assert both.measures == ("Answer@1",)
    compared = isthmus.evaluate(str(folder), "bm25", split="nq-test")
    assert compared.means["Answer@20"] == report.means["Answer@20"]


def test_answers_stand_beside_judged_documents(folder: Path) -> None:
    report = isthmus.evaluate(str(folder), "bm25", split="nq-train", measures="RR@10 Answer@1")
    assert report.queries == 2
    assert report.means["RR@10"]["bm25"] == report.means["Answer@1"]["bm25"] == 1.0


def test_measures_that_cannot_be_counted_are_refused(folder: Path) -> None:
    with pytest.raises(SettingsError, match="'RR@10' needs judgements"):
        isthmus.evaluate(str(folder), "bm25", split="nq-test", measures="RR@10")
    run = Run("r", {"q": Ranking("q", ("1",), (1.0,))})
    with pytest.raises(SettingsError, match="'Answer@5' needs answers"):
        isthmus.evaluate({"q": {"1": 1}}, run, measures="Answer@5")
    with pytest.raises(SettingsError, match="needs a cutoff"):
        isthmus.evaluate({"q": {"1": 1}}, run, measures="Answer")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.json", "[{", "not a JSON array of objects"),
        ("x.json", "no array", "not a JSON array of objects"),
        ("x.json", '[{"question": "q", "answers": ["a"]} "', "not a JSON array of objects"),
        ("x.json", "[3]", "a JSON object is expected"),
        ("x.json", '[{"question": "q", "answers": "a"}]', "no question with a list of answers"),
        ("x.json", '[{"question": "q", "answers": ["a"], "positive_ctxs": 3}]', "not a list of"),
        ("x.csv", "question\t[print(1)]\n", "no question with a list of answers"),
        ("x.csv", "question\t" + "[" * 9000 + "\n", "no question with a list of answers"),
        ("x.csv", "question\n", "no question with a list of answers"),
    ],
)
def test_broken_questions_are_named(folder: Path, name: str, content: str, message: str) -> None:
    name = {"x.json": "biencoder-x.json", "x.csv": "x.qa.csv"}[name]
    (folder / name).write_text(content)
    with pytest.raises(InputError, match=message) as caught:
        Dpr(folder).answers("x")
    assert name in caught.value.what


def test_one_object_takes_no_more_memory_than_a_line(folder: Path) -> None:
    long = [{"question": "q" * 3 * 2**20, "answers": ["a"]}]
    (folder / "biencoder-x.json").write_text(json.dumps(long))
    assert len(Dpr(folder).answers("x")) == 1
    with pytest.raises(InputError, match="no object ends within"):
        Dpr(folder, Problems(line_limit=2**20)).answers("x")
