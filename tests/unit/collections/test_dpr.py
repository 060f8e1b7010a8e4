"""DPR's files, and top-k answer accuracy over them."""

from __future__ import annotations

import gzip
import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import isthmus
from isthmus.collections import Problems, open_collection, open_queries, read_run
from isthmus.collections.formats.dpr import Dpr
from isthmus.errors import InputError, SettingsError
from isthmus.records import Document, Query

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
TRIVIA = {
    "Data": [
        {"Question": "Which city?", "QuestionId": "tc_1", "Answer": {"Value": "Berlin",
         "Aliases": ["Berlin, Germany", "Berlin"]}},
    ],
    "Domain": "unfiltered",
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "dpr"
    (folder / "retriever" / "qas").mkdir(parents=True)
    (folder / "psgs_w100.tsv.gz").write_bytes(gzip.compress(PASSAGES.encode()))
    retriever = folder / "retriever"
    (retriever / "biencoder-nq-train.json").write_text(json.dumps(TRAINING, indent=4))
    (retriever / "qas" / "nq-train.csv").write_text("of all questions\t['Paris', \"it's\"]\n")
    lines = (
        "where is the tower\t['paris']\ncapital of Germany\t[\"Bonn\"]\nrivers\t['flow north']\n"
    )
    (retriever / "nq-test.qa.csv").write_text(lines)
    (retriever / "nq-open.jsonl").write_text('{"question": "which", "answer": ["Paris"]}\n')
    (retriever / "trivia.json").write_text(json.dumps(TRIVIA))
    return folder


def test_every_kind_of_file_is_read(folder: Path) -> None:
    found = open_collection(str(folder))
    assert isinstance(found, Dpr)
    first = Document("1", 'The "Eiffel" tower stands in Paris, France', "Eiffel Tower")
    assert next(found.documents()) == first
    assert found.splits() == ["nq-open", "nq-test", "nq-train", "nq-train-qa", "trivia"]
    assert found.judgements("nq-train") == {"nq-train-0": {"1": 1}, "nq-train-1": {"2": 1}}
    assert found.answers("nq-train")["nq-train-2"] == ["?"]
    assert found.answers("nq-train-qa") == {"nq-train-qa-0": ["Paris", "it's"]}
    assert found.answers("trivia") == {"tc_1": ["Berlin", "Berlin, Germany"]}
    assert found.answers("nq-open") == {"nq-open-0": ["Paris"]}
    assert found.judgements("nq-test") == {}
    assert Query("tc_1", "Which city?") in list(found.queries())
    assert [query.id for query in open_queries(str(folder), "nq-train")] == [
        "nq-train-0", "nq-train-1",
    ]  # fmt: skip


def test_a_split_of_answers_is_searched_and_counted(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    isthmus.index(str(folder), tmp_path / "index")
    run = tmp_path / "bm25.trec"
    isthmus.search(tmp_path / "index", queries=str(folder), split="nq-test", run=run)
    read: list[Path] = []

    def reading(file: Path, problems: Problems) -> isthmus.Run:
        read.append(file)
        return read_run(file, problems)

    monkeypatch.setattr(import_module("isthmus.evaluation.evaluate"), "read_run", reading)
    report = isthmus.evaluate(run, str(folder), split="nq-test", output=tmp_path / "report")
    assert read == [run]  # once, though texts are looked up for all runs together
    assert report.measures == ("Answer@5", "Answer@20", "Answer@100")
    assert report.means["Answer@20"]["bm25"] == pytest.approx(2 / 3)  # nothing says Bonn
    assert report.per_query["Answer@5"]["bm25"]["nq-test-1"] == 0.0
    assert "Not one document" not in report.table().caption
    both = isthmus.evaluate(run, str(folder), split="nq-test", measures="Answer@1")
    assert both.measures == ("Answer@1",)
    compared = isthmus.evaluate(collection=str(folder), split="nq-test", models="bm25")
    assert compared.means["Answer@20"] == report.means["Answer@20"]


def test_answers_stand_beside_judged_documents(folder: Path) -> None:
    report = isthmus.evaluate(
        collection=str(folder), split="nq-train", models="bm25", measures="RR@10 Answer@1"
    )
    assert report.queries == 2
    assert report.means["RR@10"]["bm25"] == report.means["Answer@1"]["bm25"] == 1.0


def test_measures_that_cannot_be_counted_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="'RR@10' needs judgements"):
        isthmus.evaluate(collection=str(folder), split="nq-test", models="bm25", measures="RR@10")
    run = isthmus.Run("r", {"q": isthmus.Ranking("q", ("1",), (1.0,))})
    with pytest.raises(SettingsError, match="'Answer@5' needs answers"):
        isthmus.evaluate(run, {"q": {"1": 1}}, measures="Answer@5")
    with pytest.raises(SettingsError, match="counts answer strings"):
        isthmus.tune(["a", "b"], "q", "r", tmp_path, measure="Answer@5")
    with pytest.raises(SettingsError, match="needs a cutoff"):
        isthmus.evaluate(run, {"q": {"1": 1}}, measures="Answer")


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
        ("x.jsonl", "[]\n", "a JSON object is expected"),
    ],
)
def test_broken_questions_are_named(folder: Path, name: str, content: str, message: str) -> None:
    (folder / name).write_text(content)
    with pytest.raises(InputError, match=message) as caught:
        Dpr(folder).answers("x")
    assert name in caught.value.what


def test_broken_questions_can_be_skipped(folder: Path) -> None:
    good: dict[str, Any] = {"question": "q", "answers": ["a"]}
    (folder / "x.json").write_text(json.dumps([3, good, {"question": 1}]))
    problems = Problems("skip")
    assert Dpr(folder, problems).answers("x") == {"x-0": ["a"]}
    assert problems.counts == {"broken line": 2}


def test_files_of_something_else_are_left_out(folder: Path) -> None:
    (folder / "isthmus.json").write_text('{"verb": "index", "results": [{"documents": 3}]}')
    (folder / "corpus.jsonl.gz").write_bytes(gzip.compress(b'{"_id": "d", "text": "x"}\n'))
    (folder / "cut.json.gz").write_bytes(gzip.compress(b'[{"question": "q"}]' * 99)[:40])
    found = Dpr(folder)
    assert found.splits() == ["cut", "nq-open", "nq-test", "nq-train", "nq-train-qa", "trivia"]
    with pytest.raises(InputError, match=r"cut\.json"):
        list(found.queries())


def test_no_file_or_question_hides_another_of_its_name(folder: Path) -> None:
    for place in ("a", "b"):
        (folder / place).mkdir()
        (folder / place / "nq-train.csv").write_text(f"{place}?\t['{place}']\n")
    found = Dpr(folder)
    names = [split for split in found.splits() if split.startswith("nq-train")]
    assert names == ["nq-train", "nq-train-qa", "nq-train-qa-2", "nq-train-qa-3"]
    texts = {found.answers(split)[f"{split}-0"][0] for split in names}
    assert texts == {"Paris", "a", "b"}
    twice = [{"id": "q", "question": text, "answers": ["a"]} for text in ("one", "two")]
    (folder / "x.json").write_text(json.dumps(twice))
    with pytest.raises(InputError, match="'q' is the id of an earlier query") as caught:
        Dpr(folder).answers("x")
    assert "record 2" in caught.value.what
    kept = [query for query in Dpr(folder, Problems("skip")).queries() if query.id == "q"]
    assert kept == [Query("q", "one")]
