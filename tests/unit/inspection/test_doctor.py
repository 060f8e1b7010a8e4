"""What is found in data is told where it belongs, whole, and with what to do about it."""

from __future__ import annotations

import json
import os
from pathlib import Path

from click.testing import CliRunner
from rich.console import Console
from tests.factories import write_collection, write_corpus, write_encoder

from isthmus.cli import app
from isthmus.config.output import write_snapshot
from isthmus.inspection.doctor import Finding, Findings, doctor
from isthmus.retrieval.index import index


def bad_collection(place: Path) -> Path:
    """A collection with a test split alone, and a document without text, which is judged."""
    long = place / "a-folder-with-a-name-that-is-longer-than-a-column-of-the-table-is-wide"
    judged = {"test": [("q1", "d1"), ("q1", "d2")]}
    return write_collection(long, {"d1": "snow", "d2": ""}, {"q1": "ice"}, judged)


def found(folder: Path) -> dict[str, Finding]:
    """What was found in a collection, by what was looked at."""
    findings = doctor([folder])
    return {
        one.subject.replace(str(folder), "IT"): one
        for one in findings
        if str(folder) in one.subject
    }


def test_a_problem_of_the_corpus_is_told_once_and_as_one_of_the_corpus(tmp_path: Path) -> None:
    folder = bad_collection(tmp_path)
    seen = found(folder)
    assert {subject: one.ok for subject, one in seen.items()} == {"IT": False, "IT test": False}
    assert f"{folder / 'corpus.jsonl'}:2" in seen["IT"].detail
    assert "1 judged documents are not in the corpus, or have no text" in seen["IT test"].detail


def test_a_problem_of_the_queries_is_not_one_of_the_corpus(tmp_path: Path) -> None:
    folder = bad_collection(tmp_path)
    with (folder / "queries.jsonl").open("a", encoding="utf-8") as stream:
        stream.write("no json\n")
    seen = found(folder)
    assert "broken line" not in seen["IT"].detail
    assert not seen["IT queries and qrels"].ok
    assert "empty text" not in seen["IT queries and qrels"].detail


def test_documents_without_queries_are_as_they_should_be(tmp_path: Path) -> None:
    (tmp_path / "snow.md").write_text("Snow fell on the bridge.", encoding="utf-8")
    assert [one.ok for one in found(tmp_path).values()] == [True]


def test_a_file_that_an_index_leaves_out_is_a_remark(tmp_path: Path) -> None:
    (tmp_path / "snow.md").write_text("Snow fell on the bridge.", encoding="utf-8")
    (tmp_path / "cafe.txt").write_bytes(b"caf\xe9")
    findings = doctor(str(tmp_path))  # one thing need not be in a list
    (seen,) = (one for one in findings if one.subject == str(tmp_path))
    assert seen.ok
    assert "cafe.txt:1" in seen.detail
    assert "iconv" in seen.fix
    assert findings.exit_code == 0


def test_queries_that_splits_share_are_remarked_upon(tmp_path: Path) -> None:
    judged = {"train": [("q1", "d1")], "dev": [("q2", "d1")], "all": [("q1", "d1"), ("q2", "d1")]}
    queries = {"q1": "snow", "q2": "ice"}
    seen = found(write_collection(tmp_path / "c", {"d1": "snow"}, queries, judged))["IT splits"]
    assert seen.ok
    assert seen.detail.splitlines() == [
        "1 queries are in both all and dev",
        "1 queries are in both all and train",
    ]


def test_no_file_and_no_line_is_cut_off(tmp_path: Path) -> None:
    folder = bad_collection(tmp_path)
    console = Console(width=80)
    with console.capture() as captured:
        console.print(Findings(found(folder).values()))
    joined = "".join(line.strip() for line in captured.get().splitlines())
    assert "…" not in joined
    assert f"{folder.name}/corpus.jsonl:2" in joined
    assert "fix:" in joined


def test_every_damaged_file_of_an_index_is_told_of(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "corpus.jsonl", {"a": "snow"})
    folder = index(str(corpus), tmp_path / "index")
    shown = CliRunner().invoke(app, ["doctor", str(folder)])
    assert shown.exit_code == 0
    assert "every checksum holds" in " ".join(shown.output.split())
    files = [file for file in sorted((folder / "segments").rglob("*.*")) if file.is_file()]
    changed, gone = files[0], files[-1]
    was = changed.stat()
    with changed.open("r+b") as stream:
        first = stream.read(1)
        stream.seek(0)
        stream.write(bytes([first[0] ^ 255]))
    os.utime(changed, ns=(was.st_atime_ns, was.st_mtime_ns))  # as decay of a disk leaves it
    gone.unlink()
    told = {one.subject: one for one in doctor([folder]) if not one.ok}
    assert told.keys() == {str(changed), str(gone)}
    assert "missing" in told[str(gone)].detail
    assert all("copy it again" in one.fix for one in told.values())
    assert CliRunner().invoke(app, ["doctor", str(folder), "--quiet"]).exit_code == 1


def test_what_an_index_holds_is_told(tmp_path: Path) -> None:
    encoder = write_encoder(tmp_path / "encoder", ["snow ice"] * 9, 60, document_max_length=24)
    lines = [
        {"id": "a", "text": "snow " * 30, "year": 2020, "lang": "en"},
        {"id": "b", "text": "ice", "year": 2021},
    ]
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(json.dumps(one) + "\n" for one in lines), encoding="utf-8")
    folder = index(str(corpus), tmp_path / "index", str(encoder))
    told = {one.subject: one for one in doctor([folder])}
    whole = told[str(folder)].detail
    assert "2 documents, 3 passages of at most 22 tokens, in 1 segment" in whole
    assert "metadata: year (number), lang (text)" in whole
    assert "fused by weighted_sum: 1 bm25, 1 dense, 1 tokens" in whole
    assert "bm25, 2 rows" in told[f"{folder}/bm25"].detail
    assert "dense, 3 rows" in told[f"{folder}/dense"].detail
    assert "128 numbers in float32" in told[f"{folder}/dense"].detail
    assert "tokens, 3 rows" in told[f"{folder}/tokens"].detail

    encoder.rename(tmp_path / "moved")
    seen = [one for one in doctor([folder]) if not one.ok]
    assert [one.subject for one in seen] == [f"{folder}/dense", f"{folder}/tokens"]
    assert all("no longer at" in one.detail for one in seen)

    half = folder / "segments" / "000002"
    half.mkdir()
    (half / "progress.json").write_text("{}", encoding="utf-8")
    assert "has not ended here" in {one.subject: one for one in doctor([folder])}[str(half)].detail


def test_an_index_without_its_manifest_is_to_be_copied_again(tmp_path: Path) -> None:
    (tmp_path / "segments").mkdir()
    (seen,) = (one for one in doctor([tmp_path]) if not one.ok)
    assert "copy the whole folder again" in seen.fix


def test_the_output_of_adapt_is_a_model_and_an_index(tmp_path: Path) -> None:
    write_encoder(tmp_path / "model", ["snow ice"] * 9, 60, document_max_length=64)
    corpus = write_corpus(tmp_path / "corpus.jsonl", {"d1": "snow"})
    index(str(corpus), tmp_path / "index")
    write_snapshot(tmp_path, "adapt", {}, {})
    told = {one.subject: one.detail for one in doctor([tmp_path])}
    assert "parameters" in told[str(tmp_path)]
    assert "1 documents, in 1 segment; every checksum holds" in told[str(tmp_path / "index")]


def test_what_is_nowhere_is_named_with_what_is_like_it(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (seen,) = (one for one in doctor([tmp_path / "note"]) if not one.ok)
    assert "there is no file, folder or model" in seen.detail
    assert "notes" in seen.fix


def test_what_an_encoder_does_not_read_of_long_texts_is_told(tmp_path: Path) -> None:
    words = ["snow ice"] * 9  # each of which is a token
    encoder = write_encoder(tmp_path / "encoder", words, 60, document_max_length=64)
    long = " ".join(["snow"] * 300)
    corpus = write_corpus(tmp_path / "corpus.jsonl", {"d1": "snow", "d2": long})
    told = {one.subject: one for one in doctor([corpus, encoder])}
    seen = told[f"{corpus} read by {encoder}"]
    assert seen.ok
    assert "1 of 2 texts are longer than the 62 tokens" in seen.detail
    assert "passages=true" in seen.fix
