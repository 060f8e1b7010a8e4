"""A hybrid of three, from the command line: what `tune` promises is what `evaluate` measures."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

import isthmus
from isthmus.cli import app


def run(*arguments: str | Path) -> str:
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert done.exit_code == 0, done.output
    return done.output


def test_tuned_on_real_queries(shared_data: Path, tmp_path: Path) -> None:
    folder = shared_data / "collections" / "medline"
    queries = next(folder.glob("queries.jsonl*"))
    qrels = next((folder / "qrels").iterdir())
    variants = {
        "usual": [],
        "unstemmed": ["--set", "bm25.stemmer=none"],
        "untitled": ["--set", "titles=false", "--set", "bm25.b=1"],
    }
    for name, settings in variants.items():
        run("index", "--corpus", f"beir:{folder}", "--output", tmp_path / name, *settings)
    indexes = [tmp_path / name for name in variants]
    asked = ["--queries", queries, "--qrels", qrels]
    shown = run(
        "tune", *indexes, *asked, "--output", tmp_path / "hybrid", "--measure", "nDCG@10",
        "--set", "steps=10", "--set", "candidates=100",
    )  # fmt: skip
    assert "held-out" in shown
    results = json.loads((tmp_path / "hybrid" / "isthmus.json").read_text())["results"]
    run_file = tmp_path / "hybrid.trec"
    run("search", tmp_path / "hybrid", "--queries", queries, "--run", run_file, "--depth", "100")
    report = isthmus.evaluate(qrels, run_file, measures="nDCG@10")
    (value,) = report.means["nDCG@10"].values()
    assert abs(value - results["value"]) < 1e-9
    assert len(results["weights"]) == 3
    # The same by hand.
    by_hand = tmp_path / "by-hand.trec"
    run(
        "search", indexes[0], "--with", indexes[1], "--with", indexes[2], "--queries", queries,
        "--run", by_hand, "--depth", "100", "--set", "candidates=100",
        "--set", f"weights={results['weights']}", "--set", "tag=hybrid",
    )  # fmt: skip
    assert by_hand.read_text() == run_file.read_text()
