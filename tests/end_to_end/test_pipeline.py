"""Real collections through the whole pipeline, as the README shows it."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import isthmus
from isthmus.collections import open_collection

_MEASURES = ("nDCG@10", "RR@10", "R@100")


def snapshot(folder: Path) -> dict[str, Any]:
    """What made a folder, after checking that nothing which every output must tell is missing."""
    found: dict[str, Any] = json.loads((folder / "isthmus.json").read_text(encoding="utf-8"))
    assert found["complete"] is True
    assert found["command"][0] == "isthmus"
    for library in ("isthmus", "python", "torch", "transformers", "numpy"):
        assert found["versions"][library]
    assert "commit" in found  # None outside a source tree
    return found


def report_of(commands: Any, runs: list[Path], qrels: Path, output: Path) -> dict[str, Any]:
    """The report of some runs, after checking its files."""
    ended = commands.succeed("evaluate", qrels, *runs, "--output", output)
    print(ended.stdout)
    assert {file.name for file in output.iterdir()} >= {
        "isthmus.json", "report.json", "table.md", "table.tex", "per_query.tsv",
    }  # fmt: skip
    report: dict[str, Any] = json.loads((output / "report.json").read_text(encoding="utf-8"))
    assert set(report["means"]) == set(_MEASURES)
    for of in report["means"].values():
        assert all(math.isfinite(mean) and 0 <= mean <= 1 for mean in of.values())
    recorded = snapshot(output)["identity"]
    assert recorded["collections"]
    assert all(recorded["systems"].values())
    return report


def search(commands: Any, index: Path, queries: Path, run: Path) -> Path:
    commands.succeed(
        "search",
        index,
        "--queries",
        queries,
        "--output",
        run,
        "--top-k",
        "100",
        "--set",
        f"tag={index.name}",
    )
    assert run.is_file()
    return run


def queries_in(file: Path) -> set[str]:
    """The query ids of a run or of judgements (whose first line is a header)."""
    lines = file.read_text(encoding="utf-8").splitlines()
    return {line.split()[0] for line in lines} - {"query-id"}


@pytest.fixture(scope="session")
def scifact(shared_data: Path) -> Path:
    return shared_data / "collections" / "scifact"


@pytest.fixture(scope="session")
def retriever(
    commands: Any,
    scifact: Path,
    settings: Callable[..., list[str]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """An encoder from nothing, pre-trained on Medline and fine-tuned on SciFact for a few steps.

    Of SciFact's documents every sixth is left, beside those that answer.
    """
    folder = tmp_path_factory.mktemp("retriever")
    medline = scifact.with_name("medline")
    commands.succeed(
        "pretrain", f"beir:{medline}", "--model", "scratch:tiny", "--output", folder / "bow",
        *settings("vocabulary=2000", "max_length=64", "training.max_steps=6",
                  "probes.documents=40"),
    )  # fmt: skip
    pretrained = snapshot(folder / "bow")
    assert pretrained["identity"]["settings"]["training"]["seed"] == 42
    assert pretrained["identity"]["data"]["documents"]
    assert pretrained["results"]["documents"] == 1033
    steps = [entry for entry in pretrained["results"]["log"] if "loss" in entry]
    assert len(steps) == 6
    for name in ("masked_lm", "bag_of_words", "bag_of_words/gap", "learning_rate"):
        assert all(name in entry for entry in steps)
    assert "probe/retrieval" in pretrained["results"]["log"][0]

    smaller = folder / "scifact"
    shutil.copytree(scifact, smaller, ignore=shutil.ignore_patterns("corpus.*"))
    lines = (scifact / "qrels" / "train.tsv").read_text(encoding="utf-8").splitlines()
    answers = {line.split()[1] for line in lines}
    with (smaller / "corpus.jsonl").open("w", encoding="utf-8") as stream:
        for number, found in enumerate(open_collection(f"beir:{scifact}").documents()):
            if number % 6 == 0 or found.id in answers:
                record = {"_id": found.id, "title": found.title, "text": found.text}
                stream.write(json.dumps(record) + "\n")
    commands.succeed(
        "finetune", "--model", folder / "bow", f"beir:{smaller}",
        "--output", folder / "dense",
        *settings("training.max_steps=6", "document_max_length=24", "negatives.num_negatives=2"),
    )  # fmt: skip
    finetuned = snapshot(folder / "dense")
    assert finetuned["identity"]["data"]["collection"]
    assert finetuned["results"]["queries"] == 809
    return folder / "dense"


def test_scifact(commands: Any, scifact: Path, tmp_path: Path) -> None:
    commands.succeed(
        "index",
        f"beir:{scifact}",
        "--output",
        tmp_path / "lucene",
        "--set",
        "bm25.k1=1.2",
        "--set",
        "bm25.b=0.75",
    )
    assert len(isthmus.open_index(tmp_path / "lucene")) == 5183
    run = tmp_path / "lucene.trec"
    search(commands, tmp_path / "lucene", scifact / "queries.jsonl.zst", run)

    qrels = scifact / "qrels" / "test.tsv"
    assert queries_in(run) >= queries_in(qrels)
    report = report_of(commands, [run], qrels, tmp_path / "report")
    assert report["queries"] == 300
    # Published values of BM25 on this collection lie between .665 and .679.
    assert 0.66 <= report["means"]["nDCG@10"]["lucene"] <= 0.70

    hits = commands.succeed("search", tmp_path / "lucene", "vitamin D deficiency", "--top-k", "3")
    assert "vitamin" in hits.stdout.lower()


def test_cranfield(commands: Any, shared_data: Path, retriever: Path, tmp_path: Path) -> None:
    folder = shared_data / "collections" / "cranfield"
    command = ["index", f"beir:{folder}", "--model"]
    refused = commands.run(*command, retriever, "--output", tmp_path / "refused")
    assert refused.returncode == 2
    assert "empty text" in refused.stderr  # two documents of this collection have none
    assert "corpus.jsonl.zst:" in refused.stderr

    runs = []
    for model in (str(retriever), "bm25"):
        index = tmp_path / Path(model).name
        ended = commands.succeed(*command, model, "--output", index, "--set", "problems=skip")
        assert "skipped 2 x empty text" in ended.stderr
        made = isthmus.open_index(index)
        assert len(made) == 1398
        assert made.names == (["bm25"] if model == "bm25" else ["bm25", "dense", "tokens"])
        run = tmp_path / f"{index.name}.trec"
        runs.append(search(commands, index, folder / "queries.jsonl.zst", run))
    qrels = folder / "qrels" / "test.tsv"
    report = report_of(commands, runs, qrels, tmp_path / "report")
    assert report["queries"] == 225
    assert report["systems"] == ["dense", "bm25"]
    assert report["tests"]["nDCG@10"]
    assert all(queries_in(run) == queries_in(qrels) for run in runs)
    assert report["means"]["nDCG@10"]["bm25"] >= 0.35
