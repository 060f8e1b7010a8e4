"""What is found in data is told where it belongs, whole, and with what to do about it."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console
from tests.factories import write_collection, write_corpus, write_encoder
from typer.testing import CliRunner

from isthmus.cli import app
from isthmus.indexes.bm25.builder import build_bm25
from isthmus.indexes.manifest import Bm25Settings, CorpusOrigin, Description
from isthmus.inspection.doctor import Finding, doctor, findings_table, shared_queries
from isthmus.records import Document
from isthmus.retrieval.verbs.index import index


def bad_collection(place: Path) -> Path:
    """A collection with a test split alone, and a document without text, which is judged."""
    long = place / "a-folder-with-a-name-that-is-longer-than-a-column-of-the-table-is-wide"
    judged = {"test": [("q1", "d1"), ("q1", "d2")]}
    return write_collection(long, {"d1": "snow", "d2": ""}, {"q1": "ice"}, judged)


def found(folder: Path) -> dict[str, Finding]:
    """What was found in a collection, by what was looked at."""
    findings = doctor(collection=str(folder))
    return {
        one.subject.replace(str(folder), "IT"): one
        for one in findings
        if str(folder) in one.subject
    }


def test_a_problem_of_the_corpus_is_told_once_and_as_one_of_the_corpus(tmp_path: Path) -> None:
    folder = bad_collection(tmp_path)
    seen = found(folder)
    assert {subject: one.verdict for subject, one in seen.items()} == {
        "corpus IT": "wrong",
        "IT test": "wrong",
        "IT train": "note",
    }
    assert f"{folder / 'corpus.jsonl'}:2" in seen["corpus IT"].detail
    assert "1 judged documents are not in the corpus, or have no text" in seen["IT test"].detail


def test_a_problem_of_the_queries_is_not_one_of_the_corpus(tmp_path: Path) -> None:
    folder = bad_collection(tmp_path)
    with (folder / "queries.jsonl").open("a", encoding="utf-8") as stream:
        stream.write("no json\n")
    seen = found(folder)
    assert "broken line" not in seen["corpus IT"].detail
    assert seen["IT queries and judgements"].verdict == "wrong"
    assert "empty text" not in seen["IT queries and judgements"].detail


def test_a_split_that_is_the_union_of_others_is_remarked_upon(tmp_path: Path) -> None:
    folder = bad_collection(tmp_path)
    with (folder / "queries.jsonl").open("a", encoding="utf-8") as stream:
        stream.write('{"_id": "q2", "text": "snow"}\n')
    for split, queries in {"train": ["q2"], "all": ["q1", "q2"]}.items():
        lines = ["query-id\tcorpus-id\tscore", *(f"{query}\td1\t1" for query in queries)]
        (folder / "qrels" / f"{split}.tsv").write_text("\n".join(lines), encoding="utf-8")
    seen = found(folder)["IT splits"]
    assert (seen.verdict, seen.detail) == ("note", "all is the union of test, train")
    assert "split=NAME" in seen.fix


def test_no_file_and_no_line_is_cut_off(tmp_path: Path) -> None:
    folder = bad_collection(tmp_path)
    console = Console(width=80)
    with console.capture() as captured:
        console.print(findings_table(list(found(folder).values())))
    columns = [line.split("│")[3] for line in captured.get().splitlines() if line.count("│") == 4]
    joined = "".join(column.strip() for column in columns)
    assert "…" not in joined
    assert f"{folder.name}/corpus.jsonl:2" in joined
    assert "fix:" in joined


def test_every_file_of_an_index_is_told_of(tmp_path: Path) -> None:
    origin = CorpusOrigin(spec="c", fingerprint="c")
    description = Description(kind="bm25", corpus=origin, titles=True, bm25=Bm25Settings())
    index = build_bm25([Document("a", "snow")], tmp_path / "index", description, {})
    shown = CliRunner().invoke(app, ["doctor", str(index)])
    assert "whole, " in shown.output
    assert "damaged" not in shown.output
    with (index / "order.npy").open("r+b") as stream:
        stream.write(b"?")
    (index / "documents.arrow").unlink()
    told = {Path(one.subject).name: one for one in doctor(index=str(index))}
    names = {file.name for file in index.iterdir()} - {"isthmus.json"}
    assert {*names, "documents.arrow"} <= told.keys()
    wrong = [name for name in names | {"documents.arrow"} if told[name].verdict == "wrong"]
    assert sorted(wrong) == ["documents.arrow", "order.npy"]
    assert "missing" in told["documents.arrow"].detail
    assert all("copy it again" in told[name].fix for name in wrong)

    (index / "manifest.json").unlink()
    (seen,) = (one for one in doctor(index=str(index)) if str(index) in one.subject)
    assert "copy the whole folder again" in seen.fix


def test_an_index_that_is_nowhere_is_not_to_be_copied_again(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (seen,) = (one for one in doctor(index=str(tmp_path / "note")) if not one.of_machine)
    assert seen.verdict == "wrong"
    assert "there is no index" in seen.detail
    assert "notes" in seen.fix
    assert "copy" not in seen.fix


def test_what_an_encoder_does_not_read_of_long_texts_is_told(tmp_path: Path) -> None:
    words = ["snow ice"] * 9  # each of which is a token
    encoder = write_encoder(tmp_path / "encoder", words, 60, document_max_length=64)
    long = " ".join(["snow"] * 300)
    corpus = write_corpus(tmp_path / "corpus.jsonl", {"d1": "snow", "d2": long})
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    index(str(corpus), whole, str(encoder))
    index(str(corpus), cut, str(encoder), settings={"passages": True})
    told = {one.subject: one for one in doctor(corpus=str(corpus), model=str(encoder))}
    seen = told[f"{corpus} read by {encoder}"]
    assert seen.verdict == "note"
    assert "1 of 2 texts are longer than the 62 tokens" in seen.detail
    assert "passages=true" in seen.fix
    told = {one.subject: one for folder in (whole, cut) for one in doctor(str(folder))}
    assert told[f"texts of {whole}"].detail == seen.detail
    assert told[f"texts of {cut}"].verdict == "good"
    assert "6 texts whole" in told[f"texts of {cut}"].detail
    assert "dense, 6 passages" in told[str(cut / "manifest.json")].detail


@pytest.mark.parametrize(
    ("splits", "said"),
    [
        ({"train": "abc", "test": "de", "dev": ""}, []),
        ({"all": "abcde", "train": "abc", "dev": "de"}, ["all is the union of train, dev"]),
        ({"train": "abc", "all": "abcd"}, ["all 3 queries of train are in all too"]),
        ({"train": "abc", "test": "abc"}, ["train and test have the same 3 queries"]),
        (
            {"all": "abcd", "train": "abc", "dev": "cd", "test": "ae"},
            [
                "all is the union of train, dev",
                "1 queries are in both all and test",
                "1 queries are in both train and dev",
                "1 queries are in both train and test",
            ],
        ),
    ],
)
def test_splits_that_share_queries(splits: dict[str, str], said: list[str]) -> None:
    assert shared_queries({name: set(queries) for name, queries in splits.items()}) == said
