from __future__ import annotations

from pathlib import Path

import pytest

from isthmus.collections import Problems, read_queries
from isthmus.errors import InputError
from isthmus.records import Query


def write(folder: Path, content: str, name: str = "queries") -> Path:
    file = folder / name
    file.write_bytes(content.encode())
    return file


def test_jsonl_and_tabs_are_told_apart(tmp_path: Path) -> None:
    expected = [Query("1", "what is it"), Query("q2", "and why")]
    json_text = '{"_id": 1, "text": "what is it"}\n{"query_id": "q2", "query": "and why"}\n'
    assert read_queries(write(tmp_path, json_text)) == expected
    assert read_queries(write(tmp_path, "1\twhat is it\r\nq2\tand why\r\n")) == expected


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("q1\ta\nq1\tb\n", "duplicate id: 'q1' is the id of an earlier query"),
        ("q1\t \n", "empty text: query 'q1' has no text"),
        ("q1 no tab\n", "broken line: 1 columns separated by tabs where 2 are expected"),
        ("\ttext\n", "broken line: the id is empty"),
        ('{"_id": "q", "question": "x"}\n', "broken line: no key for the text"),
    ],
)
def test_bad_queries(content: str, message: str, tmp_path: Path) -> None:
    file = write(tmp_path, content)
    with pytest.raises(InputError) as caught:
        read_queries(file)
    assert message in caught.value.what
    assert f"{file}:" in caught.value.what


def test_a_file_left_without_queries_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no query"):
        read_queries(write(tmp_path, "broken\n"), Problems("skip"))
