"""A search without a query answers line by line, from indexes that are opened once."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.factories import write_corpus, write_encoder

import isthmus
from isthmus import progress
from isthmus.cli import app

LINES = b"  a fox \n\nthe\nin \xff\nzebra\n"


def built(folder: Path) -> Path:
    texts = {"1": "the quick fox", "2": "a dog"}
    return isthmus.index(write_corpus(folder / "docs.jsonl", texts), folder / "index").folder


def test_lines_of_a_pipe_are_answered_and_bad_ones_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    index = built(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(LINES), "utf-8"))
    assert app(["search", str(index)], standalone_mode=False) == 1
    found = capsys.readouterr()
    assert found.out.count("“") == 3
    assert "“a fox”" in found.out
    assert "“the”: no results: 'the' has no words to search for" in found.out
    assert "no results: no document holds a term" in found.out.partition("“zebra”")[2]
    assert "wrong encoding" in found.err
    assert "Traceback" not in found.err


def test_every_line_of_a_pipe_has_a_line_of_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    index = built(tmp_path)

    def answered(lines: bytes) -> tuple[object, list[dict[str, Any]]]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines), "utf-8"))
        code = app(["search", str(index), "--json"], standalone_mode=False)
        return code, [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    code, (fox, blank, the, wrong, zebra) = answered(LINES)
    assert code == 1
    assert [hit["id"] for hit in fox["hits"]] == ["1"]
    assert fox.keys() == {"query", "hits"}
    assert blank == {"query": "", "hits": [], "notice": "'' has no words to search for"}
    assert the["notice"] == "'the' has no words to search for"
    assert wrong["query"] == "in \\udcff"
    assert "wrong encoding" in wrong["error"]["what"]
    assert zebra["notice"] == "no document holds a term of the query"
    assert answered(b"dog\n\nthe\n")[0] in (0, None), "none of them is a failure"


def test_a_terminal_gets_a_prompt_until_ctrl_d(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    index = built(tmp_path)

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdin", Terminal("dog\nfox\n"))
    app(["search", str(index), "--top-k", "1"], standalone_mode=False)
    found = capsys.readouterr()
    assert found.out.count("query> ") == 3
    assert "“dog”" in found.out
    assert "“fox”" in found.out


def test_json_and_quiet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    index = built(tmp_path)
    app(["search", str(index), "fox", "--json"], standalone_mode=False)
    found = json.loads(capsys.readouterr().out)
    assert found["query"] == "fox"
    (hit,) = found["hits"]
    assert hit.pop("score") > 0
    text = "the quick fox"
    assert hit == {
        "rank": 1, "id": "1", "title": "", "text": text, "snippet": text, "passage": None,
        "highlights": [[10, 13]],
    }  # fmt: skip
    corpus, other = str(index.parent / "docs.jsonl"), str(index.parent / "other")
    app(["index", corpus, "--output", other, "--quiet"], standalone_mode=False)
    assert not progress.console.quiet  # for the next command
    shown = capsys.readouterr()
    assert shown.out.startswith("index: ")
    assert not shown.err


def test_a_hit_in_a_passage_says_which(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    text = f"# Harbour\n\n{'Ships come in. ' * 8}\n\n## Hours\n\nThe lighthouse is off at six.\n"
    (notes / "harbour.md").write_text(text)
    lengths = {"query_max_length": 16, "document_max_length": 32}
    model = write_encoder(tmp_path / "model", [text], 200, **lengths)
    isthmus.index(str(notes), tmp_path / "index", str(model), settings={"passages.length": 16})
    capsys.readouterr()
    app(["search", str(tmp_path / "index"), "lighthouse", "--json"], standalone_mode=False)
    (hit,) = json.loads(capsys.readouterr().out)["hits"]
    place = hit["passage"]
    stored = isthmus.open_index(tmp_path / "index")["harbour.md"].text
    assert hit["text"] == stored[place["start"] : place["end"]]
