"""Sparse retrievers: trained as the recipes say, resumed exactly, the same on two processes."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

_STEPS = 6
_GLOBAL_BATCH = 8


@pytest.fixture
def small(settings: Callable[..., list[str]], model: Path, collection: Path) -> list[str]:
    """A recipe in so few steps that its ramp must be over soon; without dropout."""
    return [
        "--model", str(model), str(collection),
        *settings(
            f"training.max_steps={_STEPS}", "training.dropout=0.0", "training.learning_rate=2e-4",
            "training.save_total_limit=9", "document_max_length=32", "negatives.num_negatives=2",
        ),
    ]  # fmt: skip


def split(batch: int) -> list[str]:
    return ["--set", f"training.per_device_train_batch_size={batch}"]


def log(output: Path) -> list[dict[str, float]]:
    snapshot = json.loads((output / "isthmus.json").read_text(encoding="utf-8"))
    return [entry for entry in snapshot["results"]["log"] if "loss" in entry]


def weights(output: Path) -> dict[str, Any]:
    files = sorted((output / "final").glob("*.safetensors"))
    return {
        f"{file.stem}.{name}": value for file in files for name, value in load_file(file).items()
    }


@pytest.mark.nightly
def test_two_processes_equal_one(commands: Any, small: list[str], tmp_path: Path) -> None:
    kinds = {
        "splade": ["--recipe", "splade", "--set", "regularizers.flops.queries=0.1"],
        # A parameter that the backbone does not have.
        "terms": ["--recipe", "lexmae-sparse", "--set", "sparse.query=terms"],
    }
    for name, recipe in kinds.items():
        command = ["finetune", *recipe, *small]
        one, two = (str(tmp_path / f"{name}-{count}") for count in ("one", "two"))
        commands.succeed(*command, "--output", one, *split(_GLOBAL_BATCH))
        commands.succeed(*command, "--output", two, *split(_GLOBAL_BATCH // 2), processes=2)
    for name in kinds:
        one, two = tmp_path / f"{name}-one", tmp_path / f"{name}-two"
        assert [entry["step"] for entry in log(one)] == list(range(1, _STEPS + 1))
        for left, right in zip(log(one), log(two), strict=True):
            for key, value in left.items():
                # A weight beside 0 may fall on either side of it.
                tolerance = 1e-2 if key.startswith("active_terms") else 1e-4
                assert value == pytest.approx(right[key], rel=tolerance), (name, key)
            assert left["active_terms/documents"] > 0
        ours, theirs = weights(one), weights(two)
        assert ours.keys() == theirs.keys()
        assert ("query_terms.terms" in ours) == (name == "terms")
        for key, value in ours.items():
            np.testing.assert_allclose(value, theirs[key], rtol=1e-3, atol=2e-5, err_msg=key)


def test_a_resumed_run_ends_as_if_uninterrupted(
    commands: Any, small: list[str], tmp_path: Path
) -> None:
    command = ["finetune", "--recipe", "splade", *small, "--set", "sparse.query=terms", "--output"]
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    commands.succeed(*command, whole)
    shutil.copytree(whole, resumed)
    snapshot = json.loads((resumed / "isthmus.json").read_text(encoding="utf-8"))
    del snapshot["results"]
    (resumed / "isthmus.json").write_text(json.dumps({**snapshot, "complete": False}))
    shutil.rmtree(resumed / "final")
    shutil.rmtree(resumed / f"checkpoint-{_STEPS}")
    commands.succeed(*command, resumed)
    assert log(resumed) == log(whole)
    ours, theirs = weights(whole), weights(resumed)
    assert ours.keys() == theirs.keys()
    for key, value in ours.items():
        np.testing.assert_array_equal(value, theirs[key], err_msg=key)
    start = load_file(whole / "checkpoint-3" / "query_terms.safetensors")["terms"]
    assert (ours["query_terms.terms"] != start).any(), "they are trained"
    # The next stage goes on from them.
    told = commands.succeed(*command, tmp_path / "next", "--model", whole)
    assert "query terms continue from" in " ".join(told.stderr.split())


def test_all_zero_vectors_stop_with_the_reason_and_the_remedy(
    commands: Any, small: list[str], tmp_path: Path
) -> None:
    command = ["finetune", "--recipe", "splade", *small, "--output", tmp_path / "zero"]
    command += ["--set", "regularizers.flops={documents: 1e6, ramp: 0.0}"]
    ended = commands.run(*command, "--set", "training.learning_rate=1.0")
    told = " ".join(ended.stderr.split())
    assert ended.returncode != 0
    assert "have empty vectors at step" in told
    assert "lower the weights of the regularizers" in told
    assert "Traceback" not in told


def test_a_target_that_was_missed(
    commands: Any, small: list[str], collection: Path, tmp_path: Path
) -> None:
    command = ["finetune", "--recipe", "splade", *small, "--output", tmp_path / "out"]
    targets = {"regularizers.flops.target.documents": 3, "regularizers.l1.target.queries": 1e4}
    for name, value in targets.items():
        command += ["--set", f"{name}={value}"]
    told = " ".join(commands.succeed(*command).stderr.split())
    results = json.loads((tmp_path / "out" / "isthmus.json").read_text(encoding="utf-8"))["results"]
    reached = results["active_terms"]
    for side, name in (("documents", "flops"), ("queries", "l1")):
        # Without dropout and in few steps, the finished model is nearly the last that was logged.
        assert reached[side] == pytest.approx(
            log(tmp_path / "out")[-1][f"active_terms/{side}"], 0.2
        )
        setting = f"regularizers.{name}.target.{side}"
        assert f"{side} have {reached[side]:,.1f} terms on average in the finished model" in told
        assert f"{setting} = {targets[setting]:g} is MISSED: train longer" in told
    # What was counted of the finished model is what an index of all documents holds.
    command = ["index", collection, "--model", tmp_path / "out" / "final", "-s", "passages=false"]
    ended = commands.succeed(*command, "--output", tmp_path / "index")
    found = re.search(r"([\d.]+) terms in an average row", ended.stderr)
    assert found is not None
    assert float(found[1]) == pytest.approx(reached["documents"], rel=0.1)
