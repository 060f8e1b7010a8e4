"""Learning from a teacher, and towards a number of terms: resumed exactly, on two processes too."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

_STEPS = 6
_GLOBAL_BATCH = 8
_KL = "losses={kl: {weight: 1.0}, contrastive: {weight: 0.2}}"

# From the first step on, and near enough for every single term to tell.
_AT_ONCE = (
    "regularizers={flops: {ramp: 0.0, target: {documents: 400}}, "
    "l1: {ramp: 0.0, target: {queries: 300}}}"
)


@pytest.fixture
def small(settings: Callable[..., list[str]], model: Path, collection: Path) -> list[str]:
    return [
        "--model", str(model), str(collection),
        *settings(
            "training.dropout=0.0", "training.learning_rate=5e-4", "training.save_total_limit=9",
            "document_max_length=32", "negatives.num_negatives=3",
        ),
    ]  # fmt: skip


def sets(*settings: str) -> list[str]:
    return [part for setting in settings for part in ("--set", setting)]


def split(batch: int) -> list[str]:
    return sets(f"training.per_device_train_batch_size={batch}")


@pytest.fixture(scope="module")
def teacher(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A re-ranker of another maker, of random opinions; its scores are far enough apart."""
    import torch
    from transformers import AutoModelForSequenceClassification

    folder = tmp_path_factory.mktemp("teacher") / "re-ranker"
    torch.manual_seed(0)
    made = AutoModelForSequenceClassification.from_pretrained(model / "final", num_labels=1)
    made.classifier.weight.data *= 1000
    made.save_pretrained(folder)
    for file in (model / "final").glob("tokenizer*"):
        shutil.copy(file, folder)
    return folder


def log(output: Path) -> list[dict[str, float]]:
    snapshot = json.loads((output / "isthmus.json").read_text(encoding="utf-8"))
    return [entry for entry in snapshot["results"]["log"] if "loss" in entry]


def weights(output: Path) -> dict[str, Any]:
    return load_file(output / "final" / "model.safetensors")


def steering(output: Path) -> dict[str, dict[str, float]]:
    text = (output / "final" / "steering.json").read_text(encoding="utf-8")
    states: dict[str, dict[str, float]] = json.loads(text)
    return states


def interrupt(whole: Path, resumed: Path) -> None:
    """Leaves of a finished run what it would have left if killed after its first checkpoint."""
    shutil.copytree(whole, resumed)
    snapshot = json.loads((resumed / "isthmus.json").read_text(encoding="utf-8"))
    del snapshot["results"]
    (resumed / "isthmus.json").write_text(json.dumps({**snapshot, "complete": False}))
    shutil.rmtree(resumed / "final")
    for checkpoint in resumed.glob("checkpoint-*"):
        if checkpoint.name != "checkpoint-3":
            shutil.rmtree(checkpoint)


@pytest.mark.nightly
def test_two_processes_equal_one_and_a_resumed_run_an_uninterrupted_one(
    commands: Any, small: list[str], teacher: Path, tmp_path: Path
) -> None:
    taught = sets(
        _KL, "teacher.name=cross_encoder", f"teacher.model={teacher}",
        f"training.max_steps={_STEPS}", "training.num_train_epochs=1",
    )  # fmt: skip
    kinds = {
        "dense": ["--recipe", "dense", *taught],
        "sparse": ["--recipe", "splade", *taught, *sets(_AT_ONCE)],
    }
    for name, recipe in kinds.items():
        command = ["finetune", *recipe, *small]
        one, two = (str(tmp_path / f"{name}-{count}") for count in ("one", "two"))
        told = commands.succeed(*command, "--output", one, *split(_GLOBAL_BATCH))
        asked = "score by the teacher" in told.stderr
        assert asked == (name == "dense"), "what was scored for one student is known for the next"
        assert "of a query's own weigh more (1) than those of the batch (0.2)" in " ".join(
            told.stderr.split()
        )
        interrupt(Path(one), tmp_path / "resumed")
        commands.succeed(*command, "--output", tmp_path / "resumed", *split(_GLOBAL_BATCH))
        assert log(tmp_path / "resumed") == log(Path(one))
        for key, value in weights(Path(one)).items():
            np.testing.assert_array_equal(value, weights(tmp_path / "resumed")[key], err_msg=key)
        shutil.rmtree(tmp_path / "resumed")
        commands.succeed(*command, "--output", two, *split(_GLOBAL_BATCH // 2), processes=2)
    for name in kinds:
        one, two = tmp_path / f"{name}-one", tmp_path / f"{name}-two"
        assert [entry["step"] for entry in log(one)] == list(range(1, _STEPS + 1))
        for left, right in zip(log(one), log(two), strict=True):
            for key, value in left.items():
                # A weight beside 0 may fall on either side of it.
                tolerance = 1e-2 if key.startswith("active_terms") else 1e-3
                assert value == pytest.approx(right[key], rel=tolerance), (name, key)
            assert left["loss"] == pytest.approx(
                left["kl"]
                + 0.2 * left["contrastive"]
                + sum(left[key] * left[f"{key}/weight"] for key in left if f"{key}/weight" in left),
                rel=1e-4,
            )
        ours, theirs = weights(one), weights(two)
        assert ours.keys() == theirs.keys()
        for key, value in ours.items():
            np.testing.assert_allclose(value, theirs[key], rtol=1e-3, atol=2e-4, err_msg=key)
    ours, theirs = steering(tmp_path / "sparse-one"), steering(tmp_path / "sparse-two")
    assert ours.keys() == theirs.keys() == {"flops/documents", "l1/queries"}
    for name, state in ours.items():
        assert state == pytest.approx(theirs[name], rel=5e-4), "the terms of all processes count"
    steered = [entry["flops/documents/weight"] for entry in log(tmp_path / "sparse-one")]
    assert steered[0] == pytest.approx(1e-3)
    assert steered[1] > steered[0], "too many terms at first"
    assert len(set(steered)) == _STEPS


def test_a_student_learns_what_the_teacher_prefers(
    commands: Any, small: list[str], collection: Path, tmp_path: Path
) -> None:
    """The teacher, a file, prefers the document whose number is higher, relevant or not."""
    file = tmp_path / "scores.tsv"
    rows = (f"q{query}\td{row}\t{row / 40}" for query in range(120) for row in range(400))
    file.write_text("\n".join(rows) + "\n", encoding="utf-8")
    command = ["finetune", "--recipe", "dense", *small, *split(24)]
    command += sets("losses={kl: {}}", "teacher.name=scores", f"teacher.file={file}")
    command += sets("training.learning_rate=2e-3")
    commands.succeed(*command, "--output", tmp_path / "run", *sets("training.max_steps=40"))
    values = [entry["kl"] for entry in log(tmp_path / "run")]
    assert np.mean(values[-5:]) < 0.8 * np.mean(values[:5])
