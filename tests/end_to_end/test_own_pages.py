"""Pages of one's own by the command line: indexed, asked line by line, synced, replaced."""

from __future__ import annotations

import io
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import isthmus
from isthmus.cli import app
from isthmus.encoders import DenseEncoder, DenseSettings
from isthmus.nn.sizes import new_backbone
from isthmus.text.new_tokenizer import new_tokenizer

PAGES = ("cluster", "evaluate", "hybrid", "received", "update-an-index")
QUESTION = "when is the lighthouse of the harbour switched off"
ANSWER = "The lighthouse of the harbour is switched off at six in the morning."
_HOW_TO = Path(__file__).parents[2] / "docs" / "how-to"

Run = Callable[..., str]


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    """Pages longer than the encoder reads; the last sentence of one is an answer."""
    folder = tmp_path / "notes"
    folder.mkdir()
    for name in PAGES:
        shutil.copy(_HOW_TO / f"{name}.md", folder)
    with (folder / "cluster.md").open("a", encoding="utf-8") as page:
        page.write(f"\n## Opening hours\n\n{ANSWER}\n")
    return folder


@pytest.fixture
def model(tmp_path: Path, notes: Path) -> Path:
    """An encoder that has learnt nothing, of words of the pages."""
    texts = [page.read_text(encoding="utf-8") for page in notes.iterdir()]
    tokenizer = new_tokenizer(texts, 2000)
    backbone = new_backbone("tiny", tokenizer.rows, tokenizer.pad_id, max_length=64, seed=0)
    lengths = {"query_max_length": 64, "document_max_length": 64}
    settings = DenseSettings(pooling="mean", similarity="cosine", **lengths)
    DenseEncoder(backbone, tokenizer, settings).save(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command in this process; what it printed."""

    def command(*words: str | Path) -> str:
        capsys.readouterr()
        assert not app([str(word) for word in words], standalone_mode=False)
        return capsys.readouterr().out

    return command


def test_several_retrievers_of_long_pages_follow_their_folder_and_are_replaced(
    run: Run, notes: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = tmp_path / "index"
    short = ("--set", "passages.length=40")
    run("index", "--corpus", notes, "--with", f"bm25,{model}", "--output", index, *short)

    def ask(questions: list[str], *settings: str) -> list[dict[str, Any]]:
        lines = io.BytesIO("".join(f"{one}\n" for one in questions).encode())
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(lines, "utf-8"))
        told = run("search", index, "--json", *settings)
        return [json.loads(line) for line in told.splitlines()]

    found, nothing, more = ask([QUESTION, "", "how are segments merged"])
    best = found["hits"][0]
    assert best["id"] == "cluster.md"
    assert best["heading"].endswith("Opening hours")
    texts = {one.id: one.text for one in isthmus.open_corpus(str(notes)).documents()}
    assert ANSWER in texts["cluster.md"][best["start"] : best["end"]]
    assert best["passage"] > 3, "one of the last of a long page"
    assert "six in the morning" in best["snippet"]
    assert nothing["hits"] == []
    assert len(more["hits"]) == len(PAGES), "the encoder finds all"

    (notes / "cluster.md").unlink()
    (notes / "hybrid.md").write_text("# Bells\n\nA bell rings where ships cannot see.\n")
    told = run("sync", notes, index)
    assert "replaced 1: hybrid.md" in told
    assert "deleted 1: cluster.md" in told
    assert {hit["id"] for hit in ask([QUESTION])[0]["hits"]} == {
        one.name for one in notes.iterdir()
    }
    by_bm25 = ("--set", "weights=[1, 0]")  # the encoder has learnt nothing
    assert ask(["a bell for ships"], *by_bm25)[0]["hits"][0]["id"] == "hybrid.md"

    run("index", "--corpus", notes, "--output", index, "--overwrite")
    assert (index / "manifest.json").is_file()
    assert not (index / "hybrid.json").exists()
    assert ask(["a bell for ships"])[0]["hits"][0]["id"] == "hybrid.md"
    assert not list(tmp_path.glob(".index*")), "nothing is left beside it"
