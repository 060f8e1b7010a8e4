"""A search without a query answers line by line, from indexes that are opened once."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

import isthmus
from isthmus import progress
from isthmus.cli import app

LINES = b"  a fox \n\nthe\nin \xff\nzebra\n"


@pytest.fixture
def index(tmp_path: Path) -> Path:
    file = tmp_path / "docs.jsonl"
    file.write_text('{"_id": "1", "text": "the quick fox"}\n{"_id": "2", "text": "a dog"}\n')
    return isthmus.index(str(file), tmp_path / "index")


def test_lines_of_a_pipe_are_answered_and_bad_ones_explained(
    index: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(LINES), "utf-8"))
    app(["search", str(index)], standalone_mode=False)
    found = capsys.readouterr()
    assert found.out.count("“") == 2
    assert "“a fox”" in found.out
    assert "no results" in found.out.partition("“zebra”")[2]
    assert "'the' has no words to search for" in found.err
    assert "wrong encoding" in found.err
    assert "Traceback" not in found.err


def test_a_terminal_gets_a_prompt_until_ctrl_d(
    index: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdin", Terminal("dog\nfox\n"))
    app(["search", str(index), "--depth", "1"], standalone_mode=False)
    found = capsys.readouterr()
    assert found.out.count("query> ") == 3
    assert "“dog”" in found.out
    assert "“fox”" in found.out


def test_json_and_quiet(index: Path, capsys: pytest.CaptureFixture[str]) -> None:
    app(["search", str(index), "fox", "--json"], standalone_mode=False)
    found = json.loads(capsys.readouterr().out)
    assert found["query"] == "fox"
    (hit,) = found["hits"]
    assert hit.pop("score") > 0
    assert hit == {"rank": 1, "id": "1", "title": "", "snippet": "the quick fox"}
    corpus, other = str(index.parent / "docs.jsonl"), str(index.parent / "other")
    try:
        app(["index", "--corpus", corpus, "--output", other, "--quiet"], standalone_mode=False)
    finally:
        progress.console.quiet = False
    shown = capsys.readouterr()
    assert shown.out.startswith("index: ")
    assert not shown.err
