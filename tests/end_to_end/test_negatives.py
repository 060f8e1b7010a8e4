"""Negatives from the command line: every source, mixtures, the audit, and files that do not fit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

Run = Callable[..., Any]


@pytest.fixture(scope="module")
def stage(
    commands: Any,
    model: Path,
    collection: Path,
    settings: Callable[..., list[str]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Run:
    """Fine-tunes for a moment with the given negatives; the output and what was told."""
    folder = tmp_path_factory.mktemp("stages")

    def run(name: str, negatives: str, *more: str, good: bool = True) -> Any:
        ended = commands.run(
            "finetune", "--model", model, collection, "--output", folder / name,
            *settings("training.max_steps=2", "training.num_train_epochs=1",
                      "document_max_length=32", f"negatives={negatives}", *more),
        )  # fmt: skip
        assert (ended.returncode == 0) == good, ended.stderr
        return folder / name, " ".join(ended.stderr.split())

    return run


@pytest.fixture(scope="module")
def first(stage: Run) -> Path:
    output: Path = stage("first", "{name: bm25, num_negatives: 4}")[0]
    return output


def test_a_mixture_of_a_retriever_and_bm25(stage: Run, first: Path) -> None:
    chosen = (
        f"[{{name: retriever, model: '{first}', num_negatives: 3, range_max: 50}}, "
        "{name: bm25, num_negatives: 2}]"
    )
    output, told = stage("mixed", chosen)
    assert np.load(output / "negatives.npy").shape == (120, 5)
    assert "indexing" in told
    again, told = stage("again", chosen.replace("range_max: 50", "range_max: 40, range_min: 5"))
    assert "indexing" not in told, "neither encoded"
    assert "rank candidates" not in told, "nor ranked again"
    assert (np.load(again / "negatives.npy") != np.load(output / "negatives.npy")).any()
    snapshot = json.loads((output / "isthmus.json").read_text(encoding="utf-8"))
    origin = snapshot["identity"]["data"]["negatives"]
    assert origin[0]
    assert origin[1] is None, "BM25's settings say everything"


def test_the_audit_of_a_run(commands: Any, first: Path, tmp_path: Path) -> None:
    assert "Suspected false negatives" in (first / "negatives.html").read_text(encoding="utf-8")
    page = tmp_path / "pages" / "negatives.html"
    shown = commands.succeed("research", "negatives", first, "--output", page)
    assert "score no less than the positive, by the source" in shown.stdout
    assert page.read_text(encoding="utf-8") == (first / "negatives.html").read_text(
        encoding="utf-8"
    ), "the same seed draws the same"
    refused = commands.run("research", "negatives", first, "--model", "another")
    assert refused.returncode == 2
    assert "audited as it was trained" in refused.stderr
    refused = commands.run("research", "negatives", tmp_path)
    assert refused.returncode == 2
    assert "a tokenizer is needed" in refused.stderr


def test_a_run_file(
    commands: Any, collection: Path, first: Path, stage: Run, tmp_path: Path
) -> None:
    mined = ["--set", "bm25.k1=0.9", "--set", "bm25.b=0.4"]  # as `negatives.bm25.scoring`
    commands.succeed("index", collection, "--output", tmp_path / "bm25", *mined)
    queries = collection / "queries.jsonl"
    commands.succeed(
        "search", tmp_path / "bm25", "--queries", queries, "--output", tmp_path / "good.trec"
    )
    output, _ = stage("run", f"{{name: run, file: '{tmp_path}/good.trec', num_negatives: 4}}")
    assert (np.load(output / "negatives.npy") == np.load(first / "negatives.npy")).all()

    lines = (tmp_path / "good.trec").read_text(encoding="utf-8").replace(" Q0 d", " Q0 other-")
    (tmp_path / "bad.trec").write_text(lines, encoding="utf-8")
    for file, what in (
        ("bad.trec", "is of another corpus"),
        ("none.trec", "there is no file"),
    ):
        _, told = stage(file, f"{{name: run, file: '{tmp_path}/{file}'}}", good=False)
        assert what in told
        assert "Traceback" not in told
