from __future__ import annotations

import gzip
import json
import tracemalloc
from pathlib import Path

import pytest

from isthmus.collections import Problems, open_corpus
from isthmus.collections.formats.jsonl import Jsonl
from isthmus.errors import InputError
from isthmus.records import Document


def corpus(folder: Path, *records: object, problems: Problems | None = None) -> Jsonl:
    file = folder / "docs.jsonl"
    written = (r if isinstance(r, str) else json.dumps(r) for r in records)
    file.write_text("".join(f"{line}\n" for line in written), encoding="utf-8")
    return Jsonl(file, problems)


def test_every_spelling_of_the_keys(tmp_path: Path) -> None:
    found = corpus(
        tmp_path,
        {"_id": "a", "title": "T", "text": "x"},
        {"id": "b", "contents": "y"},
        {"docid": 3, "body": "z"},
        {"document_id": "d", "title": "only a title"},
        {"_id": "e", "title": None, "text": "null title"},
    )
    assert list(found.documents()) == [
        Document("a", "x", "T"),
        Document("b", "y"),
        Document("3", "z"),
        Document("d", "", "only a title"),
        Document("e", "null title"),
    ]


def test_other_keys_are_metadata(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = {"year": 2020, "score": 0.5, "open": False, "lang": "en", "tags": ["a"], "sizes": [1, 2]}
    found = corpus(
        tmp_path,
        {"id": "a", "text": "x", **kept, "docno": 7},
        {"id": "b", "text": "x", "metadata": {"id": "inner", "year": 1}, "year": 2, "lang": None},
        {"id": "c", "text": "x", "metadata": "a text", "tags": []},
        '{"id": "d", "text": "x", "nan": NaN, "inf": 1e999, "deep": {"a": 1}, "mixed": [1, "a"], '
        '"truths": [true], "half": "\\ud800", "\\ud800": 1, "long": 1' + "0" * 400 + "}",
    )
    for _ in range(2):
        assert [one.metadata for one in found.documents()] == [
            kept,
            {"id": "inner", "year": 2},
            {"metadata": "a text", "tags": []},
            {},
        ]
    said = capsys.readouterr().err
    assert said.count("left out") == 1
    assert "'deep'" in said


def test_lists_in_lists_are_left_out_however_deep(tmp_path: Path) -> None:
    deep = "[" * 900 + "]" * 900
    (found,) = corpus(tmp_path, f'{{"id": "a", "text": "x", "deep": {deep}}}').documents()
    assert found.metadata == {}


BROKEN = [
    ('{"_id": "x", "text": "cut', "not JSON"),
    ('["a", "list"]', "a JSON object is expected"),
    ('{"text": "no id"}', "no key for the id (_id, id, docid"),
    ('{"_id": "", "text": "t"}', "the value of '_id' is '', not an id"),
    ('{"_id": true, "text": "t"}', "the value of '_id' is True, not an id"),
    ('{"_id": "x", "text": 5}', "the value of 'text' is 5, not a text"),
    ('{"_id": "x", "passage": "t"}', "no key for the text (text, contents, body, title)"),
]


@pytest.mark.parametrize(("line", "detail"), BROKEN)
def test_broken_lines_are_named_or_counted(line: str, detail: str, tmp_path: Path) -> None:
    good = {"_id": "good", "text": "t"}
    with pytest.raises(InputError) as caught:
        list(corpus(tmp_path, good, line).documents())
    assert "docs.jsonl:2" in caught.value.what
    assert f"broken line: {detail}" in caught.value.what
    problems = Problems("skip")
    found = corpus(tmp_path, line, good, problems=problems)
    assert [d.id for d in found.documents()] == ["good"]
    assert problems.counts == {"broken line": 1}


def test_a_surrogate_pair_is_a_character(tmp_path: Path) -> None:
    whole = corpus(tmp_path, '{"_id": "x", "text": "\\ud83d\\ude00"}')
    assert [d.text for d in whole.documents()] == ["😀"]


def test_duplicate_ids_are_refused_or_skipped_keeping_the_first(tmp_path: Path) -> None:
    records = [{"_id": "a", "text": "first"}, {"_id": "b", "text": "t"}, {"_id": "a", "text": "2"}]
    with pytest.raises(InputError) as caught:
        list(corpus(tmp_path, *records).documents())
    assert "duplicate id: 'a' was the id of document 1 already" in caught.value.what
    assert "docs.jsonl:3" in caught.value.what
    problems = Problems("skip")
    found = list(corpus(tmp_path, *records, problems=problems).documents())
    assert [d.text for d in found] == ["first", "t"]
    assert problems.counts == {"duplicate id": 1}


def test_empty_texts(tmp_path: Path) -> None:
    records = [{"_id": "a", "text": " \n", "title": ""}, {"_id": "b", "text": "t"}]
    with pytest.raises(InputError, match="document 'a' has neither text nor title"):
        list(corpus(tmp_path, *records).documents())
    problems = Problems("skip")
    assert len(list(corpus(tmp_path, *records, problems=problems).documents())) == 1
    assert problems.counts == {"empty text": 1}


def test_problems_count_once_however_often_documents_are_read(tmp_path: Path) -> None:
    problems = Problems("skip")
    found = corpus(tmp_path, "broken", {"_id": "a", "text": "t"}, problems=problems)
    for _ in range(3):
        list(found.documents())
    assert problems.counts == {"broken line": 1}


def test_memory_does_not_grow_with_the_corpus(tmp_path: Path) -> None:
    peaks = []
    for size in (2_000, 20_000):
        file = tmp_path / f"{size}.jsonl.gz"
        with gzip.open(file, "wt", compresslevel=1, encoding="utf-8") as stream:
            for number in range(size):
                stream.write(f'{{"_id": "{number}", "text": "document number {number}"}}\n')
        found = open_corpus(str(file))
        tracemalloc.start()
        count = sum(1 for _ in found.documents())
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert count == size
    assert peaks[1] < peaks[0] * 1.2 + 100_000
