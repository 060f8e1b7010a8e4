"""A re-ranker: trained, resumed exactly, the same on two processes, and used when searching."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

_STEPS = 4
_BATCH = 8


@pytest.fixture(scope="module")
def command(settings: Callable[..., list[str]], model: Path, collection: Path) -> list[str]:
    """Without dropout, which draws differently for every split of a batch."""
    return [
        "finetune", "--model", str(model), str(collection),
        *settings(
            "encoder=cross", "negatives.name=bm25", "negatives.num_negatives=3",
            f"training.max_steps={_STEPS}", "training.save_steps=2", "training.dropout=0.0",
            "training.save_total_limit=9", "query_max_length=16", "document_max_length=16",
        ),
    ]  # fmt: skip


@pytest.fixture(scope="module")
def reranker(commands: Any, command: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("reranker") / "one"
    commands.succeed(*command, "--output", output)
    return output


def log(output: Path) -> list[dict[str, float]]:
    snapshot = json.loads((output / "isthmus.json").read_text(encoding="utf-8"))
    return [entry for entry in snapshot["results"]["log"] if "loss" in entry]


def weights(output: Path) -> dict[str, Any]:
    return load_file(output / "final" / "model.safetensors")


@pytest.mark.nightly
def test_two_processes_equal_one(
    commands: Any, command: list[str], reranker: Path, tmp_path: Path
) -> None:
    # And chunks, which are each process's own affair.
    half = ["--set", f"training.per_device_train_batch_size={_BATCH // 2}"]
    half += ["--set", "mini_batch_size=3"]
    commands.succeed(*command, "--output", tmp_path, *half, processes=2)
    assert [entry["step"] for entry in log(reranker)] == list(range(1, _STEPS + 1))
    for one, two in zip(log(reranker), log(tmp_path), strict=True):
        assert one["listwise"] == one["loss"]
        assert one == pytest.approx(two, rel=1e-4)
    ours, theirs = weights(reranker), weights(tmp_path)
    assert ours.keys() == theirs.keys()
    assert "classifier.weight" in ours
    # No loss over a group notices what is added to all its scores: the bias learns noise alone.
    for key in ours.keys() - {"classifier.bias"}:
        np.testing.assert_allclose(ours[key], theirs[key], rtol=1e-3, atol=1e-5, err_msg=key)


def test_a_resumed_run_ends_as_if_uninterrupted(
    commands: Any, command: list[str], reranker: Path, tmp_path: Path
) -> None:
    resumed = tmp_path / "resumed"
    shutil.copytree(reranker, resumed)
    snapshot = json.loads((resumed / "isthmus.json").read_text(encoding="utf-8"))
    del snapshot["results"]
    (resumed / "isthmus.json").write_text(json.dumps({**snapshot, "complete": False}))
    shutil.rmtree(resumed / "final")
    shutil.rmtree(resumed / f"checkpoint-{_STEPS}")
    commands.succeed(*command, "--output", resumed)
    assert log(resumed) == log(reranker)
    ours, theirs = weights(reranker), weights(resumed)
    halfway = load_file(reranker / "checkpoint-2" / "model.safetensors")
    for key, value in ours.items():
        np.testing.assert_array_equal(value, theirs[key], err_msg=key)
    assert (halfway["classifier.weight"] != ours["classifier.weight"]).any()


def test_search_with_it(commands: Any, reranker: Path, collection: Path, tmp_path: Path) -> None:
    commands.succeed("index", collection, "--output", tmp_path / "bm25")
    search = ["search", tmp_path / "bm25", "--queries", collection / "queries.jsonl"]
    search += ["-k", "20"]
    runs = {}
    for name, more in {
        "plain": [],
        "reranked": ["--rerank", reranker, "--set", "rerank.candidates=5"],
    }.items():
        file = tmp_path / f"{name}.trec"
        commands.succeed(*search, "--output", file, *more)
        runs[name] = {}
        for line in file.read_text(encoding="utf-8").splitlines():
            query, _, document, _, score, _ = line.split()
            runs[name].setdefault(query, []).append((document, float(score)))
    moved = 0
    for query, before in runs["plain"].items():
        after = runs["reranked"][query]
        names = [document for document, _ in before], [document for document, _ in after]
        assert sorted(names[0][:5]) == sorted(names[1][:5])
        assert names[0][5:] == names[1][5:]
        moved += names[0] != names[1]
        scores = [score for _, score in after]
        assert scores == sorted(scores, reverse=True)
    assert moved > 60, "of 120 queries"
    commands.succeed("search", tmp_path / "bm25", "bado keli", "--rerank", reranker)


def test_what_it_cannot_be(commands: Any, command: list[str], model: Path, tmp_path: Path) -> None:
    for change, what in {
        "negatives=null": "needs negatives in the query's own group",
        "losses={contrastive: {}}": "losses.contrastive needs",
        "temperature=0.05": "temperature = 0.05 has no effect on a cross encoder",
        "pooling=mean": "pooling = 'mean' has no effect on a cross encoder",
    }.items():
        ended = commands.run(*command, "--set", change, "--output", tmp_path / "none")
        assert ended.returncode == 2, change
        assert what in " ".join(ended.stderr.split())
        assert not (tmp_path / "none").exists(), "refused before anything is written"
    ended = commands.run("search", tmp_path, "a query", "--rerank", model)
    assert ended.returncode == 2
