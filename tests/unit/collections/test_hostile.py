"""What comes from outside ends in the project's own errors, or is counted and skipped."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from isthmus.collections import Problems, open_corpus, read_judgements, read_queries, read_run
from isthmus.collections.formats.folder import Folder
from isthmus.collections.formats.jsonl import Jsonl
from isthmus.errors import InputError, IsthmusError, SettingsError
from isthmus.evaluation.measures import parse_measure

NOT_WHOLE = [
    "1_0", "１", "١", "²", "1.0", "1e3", "0x1", "--1", "+", "nan", "inf", "True", "9" * 10,
    "9" * 5000, "\u20031",
]  # fmt: skip
NOT_DECIMAL = [
    "1_0", "1_0.5", "１", "١.٥", "nan", "inf", "-inf", "infinity", "1e400", "1e", ".", "0x1p3",
    "1,5",
]  # fmt: skip


def write(folder: Path, content: str | bytes) -> Path:
    file = folder / "file.jsonl"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return file


@pytest.mark.parametrize("relevance", NOT_WHOLE)
def test_what_only_python_takes_for_a_number_is_no_grade(relevance: str, tmp_path: Path) -> None:
    file = write(tmp_path, f"q0\td0\t1\nq1\td1\t{relevance}\n")
    with pytest.raises(InputError, match=r"relevance .* is not a whole number") as caught:
        read_judgements(file)
    assert f"{file}:2" in caught.value.what
    problems = Problems("skip")
    assert read_judgements(file, problems) == {"q0": {"d0": 1}}
    assert problems.counts == {"broken line": 1}


@pytest.mark.parametrize(("written", "grade"), [("+1", 1), ("-1", -1), (" 1 ", 1), ("007", 7)])
def test_other_spellings_of_a_grade(written: str, grade: int, tmp_path: Path) -> None:
    assert read_judgements(write(tmp_path, f"q\td\t{written}\n")) == {"q": {"d": grade}}


@pytest.mark.parametrize("score", NOT_DECIMAL)
def test_what_only_python_takes_for_a_number_is_no_score(score: str, tmp_path: Path) -> None:
    file = write(tmp_path, f"q Q0 a 1 2.0 tag\nq Q0 b 2 {score} tag\n")
    with pytest.raises(InputError) as caught:
        read_run(file)
    assert f"{file}:2" in caught.value.what
    assert read_run(file, Problems("skip")).rankings["q"].document_ids == ("a",)


@pytest.mark.parametrize("score", ["1", "-1.5", "+.5", "1.", "1e-3", "2E+5", "1" * 300])
def test_spellings_of_a_score(score: str, tmp_path: Path) -> None:
    file = write(tmp_path, f"q Q0 a 1 {score} tag\n")
    assert read_run(file).rankings["q"].scores == (float(score),)


@pytest.mark.parametrize("line", ["\td1\t1", "q1\t\t1", "q1\t \t1"])
def test_a_judgement_without_an_id(line: str, tmp_path: Path) -> None:
    file = write(tmp_path, f"q0\td0\t1\n{line}\n")
    with pytest.raises(InputError, match="an id is empty"):
        read_judgements(file)


GOOD = '{"_id": "good", "text": "text"}'
LINES = {
    "digits": ('{"_id": "a", "text": "t", "n": ' + "9" * 5000 + "}", "broken line"),
    "nested": ('{"_id": "a", "text": ' + "[" * 100_000 + "]" * 100_000 + "}", "broken line"),
    "nested a little": ('{"_id": "a", "text": ' + "[" * 900 + "]" * 900 + "}", "broken line"),
    "surrogate in the text": ('{"_id": "a", "text": "\\ud800"}', "wrong encoding"),
    "surrogate in the id": ('{"_id": "\\udfff", "text": "t"}', "wrong encoding"),
    "true for an id": ('{"_id": true, "text": "t"}', "broken line"),
    "a giant that is no text": ('{"_id": "a", "text": [' + "1," * 200_000 + "1]}", "broken line"),
    "many keys": ("{" + ",".join(f'"k{i}": 1' for i in range(10_000)) + "}", "broken line"),
}


@pytest.mark.parametrize("kind", LINES)
@pytest.mark.parametrize("read", [lambda f, p: Jsonl(f, p).documents(), read_queries])
def test_hostile_lines_are_named_or_counted(
    kind: str, read: Callable[[Path, Problems], Iterable[Any]], tmp_path: Path
) -> None:
    line, problem = LINES[kind]
    file = write(tmp_path, f"{GOOD}\n{line}\n")
    with pytest.raises(InputError) as caught:
        list(read(file, Problems()))
    assert f"{problem}: " in caught.value.what
    assert f"{file}:2" in caught.value.what
    assert len(str(caught.value)) < 5_000
    problems = Problems("skip")
    assert [record.id for record in read(file, problems)] == ["good"]
    assert problems.counts == {problem: 1}
    assert len(problems.summary()) < 5_000


@pytest.mark.parametrize("identifier", ["a\0b", "a\tb\nc", "x" * 100_000, "é" * 10, "٣"])
def test_ids_of_any_characters_are_kept(identifier: str, tmp_path: Path) -> None:
    import json

    file = write(tmp_path, json.dumps({"_id": identifier, "text": "text"}) + f"\n{GOOD}\n")
    assert [document.id for document in Jsonl(file).documents()] == [identifier, "good"]


def test_a_file_name_that_is_not_utf8(tmp_path: Path) -> None:
    (tmp_path / "good.txt").write_text("text")
    (tmp_path / os.fsdecode(b"caf\xe9.txt")).write_text("text")
    assert Folder(tmp_path).fingerprint()
    with pytest.raises(InputError, match="wrong encoding") as caught:
        list(Folder(tmp_path, Problems("refuse")).documents())
    assert str(caught.value).encode()
    assert "caf\\udce9.txt" in caught.value.what
    problems = Problems("skip")
    assert [document.id for document in Folder(tmp_path, problems).documents()] == ["good.txt"]
    assert problems.counts == {"wrong encoding": 1}
    assert problems.summary().encode()


def test_control_characters_of_a_file_name_do_not_reach_the_terminal(tmp_path: Path) -> None:
    (tmp_path / "\x1b[31mred.txt").write_bytes(b"\xff")
    with pytest.raises(InputError) as caught:
        list(Folder(tmp_path).documents())
    assert "\x1b" not in str(caught.value)


def test_a_folder_of_pipes_loops_and_broken_links(tmp_path: Path) -> None:
    (tmp_path / "good.txt").write_text("text")
    os.mkfifo(tmp_path / "pipe.txt")
    (tmp_path / "loop.txt").symlink_to("loop.txt")
    (tmp_path / "gone.txt").symlink_to("nowhere")
    (tmp_path / "folder").symlink_to(tmp_path)
    (tmp_path / "device.txt").symlink_to("/dev/zero")
    (tmp_path / "sub.txt").mkdir()
    assert [document.id for document in Folder(tmp_path).documents()] == ["good.txt"]
    assert Folder(tmp_path).fingerprint()
    assert [document.id for document in open_corpus(str(tmp_path)).documents()] == ["good.txt"]


def test_folders_nested_deeply(tmp_path: Path) -> None:
    (tmp_path / "good.txt").write_text("text")
    nested = [tmp_path / "/".join("d" * depth) for depth in range(1, 1_201)]
    for folder in nested:
        folder.mkdir()
    (nested[-1] / "a.txt").write_bytes(b"\xff")
    problems = Problems("skip")
    try:
        documents = list(open_corpus(f"folder:{tmp_path}", problems).documents())
    finally:  # too deep for pytest to remove
        (nested[-1] / "a.txt").unlink()
        for folder in reversed(nested):
            folder.rmdir()
    assert [document.id for document in documents] == ["good.txt"]
    assert problems.counts == {"wrong encoding": 1}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.md", "# " + " #" * 200_000 + "x"),
        ("a.html", "<p>text</p>" + "<title>" * 50_000 + "</style>" * 50_000 + "text"),
        ("a.html", "<title>" * 50_000 + "</title>" * 50_000 + "text"),
    ],
)
def test_a_text_that_takes_quadratic_time(name: str, content: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    began = time.process_time()
    assert list(Folder(tmp_path).documents())
    assert time.process_time() - began < 5


@pytest.mark.parametrize(
    "spec", ["x" * 5000, "folder:" + "x" * 5000, "a\0b", "jsonl:", "beir:", ""]
)
def test_paths_that_cannot_be(spec: str) -> None:
    with pytest.raises(IsthmusError):
        open_corpus(spec)


@pytest.mark.parametrize(
    "name", ["A" + "-" * 5000 + "1", "(" * 500, "RR@" + "9" * 5000, "a\0b", ""]
)
def test_names_of_measures(name: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse_measure(name)
    assert len(str(caught.value)) < 10_000


@pytest.mark.parametrize(
    "piece",
    [
        "<a ", "<!--", "<!-- --", "<![", "<![CDATA[", "<!", "<?", "</", "</ ", "&#", "&#9", "&a",
        '<a b="', "<a b='\">", "<a b= ", "<a/", "<title>", "</title>", "<template>", "<script>",
        "<script/>", "<style></", "<", "<noscript></noscript",
        "<nav>", "<main>", "<nav></nav", "<main></main>",
    ],
)  # fmt: skip
def test_a_page_takes_linear_time(piece: str, tmp_path: Path) -> None:
    page = f"<p>text</p>{piece * (1_000_000 // len(piece))}"  # quadratic time: minutes to hours
    (tmp_path / "a.html").write_text(page)
    began = time.process_time()
    (document,) = Folder(tmp_path).documents()
    assert time.process_time() - began < 10
    assert document.text.startswith("text")
