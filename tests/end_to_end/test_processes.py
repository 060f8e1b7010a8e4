"""How a batch is split, over processes or over passes, changes no loss and no weight."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

pytestmark = pytest.mark.nightly
_STEPS = 6
_GLOBAL_BATCH = 16


def launched(commands: Any, *arguments: str | Path) -> None:
    """`torchrun --nproc_per_node 2 -m isthmus …`, over gloo, as users start it."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    torchrun += ["--nproc_per_node", "2", "-m", "isthmus", *map(str, arguments)]
    ended = subprocess.run(torchrun, env=commands.environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


def interrupt_after(step: int, output: Path) -> None:
    """Leaves of a finished run what it would have left if killed after a checkpoint."""
    snapshot = json.loads((output / "isthmus.json").read_text(encoding="utf-8"))
    del snapshot["results"]
    text = json.dumps({**snapshot, "complete": False})
    (output / "isthmus.json").write_text(text, encoding="utf-8")
    shutil.rmtree(output / "final")
    for checkpoint in output.glob("checkpoint-*"):
        if int(checkpoint.name.partition("-")[2]) > step:
            shutil.rmtree(checkpoint)
    assert (output / f"checkpoint-{step}" / "complete.json").is_file()


def assert_same_training(one: Path, two: Path, steps: int = _STEPS) -> None:
    logs = []
    for output in (one, two):
        snapshot = json.loads((output / "isthmus.json").read_text(encoding="utf-8"))
        logs.append([entry for entry in snapshot["results"]["log"] if "loss" in entry])
    assert [entry["step"] for entry in logs[0]] == list(range(1, steps + 1))
    for left, right in zip(*logs, strict=True):
        assert left == pytest.approx(right, rel=1e-4)
    left, right = weights(one), weights(two)
    assert left.keys() == right.keys()
    for name in left:
        np.testing.assert_allclose(left[name], right[name], rtol=1e-3, atol=1e-5, err_msg=name)


def weights(output: Path) -> dict[str, Any]:
    """The encoder's, and the decoder's beside it."""
    files = sorted((output / "final").glob("*.safetensors"))
    return {
        f"{file.stem}.{name}": value for file in files for name, value in load_file(file).items()
    }


@pytest.fixture
def shared(settings: Callable[..., list[str]]) -> list[str]:
    """Dropout draws differently for every split: without it, only arithmetic is left."""
    return settings(
        f"training.max_steps={_STEPS}", "training.dropout=0.0", "training.save_total_limit=9"
    )


def split(batch: int, passes: int = 1) -> list[str]:
    return [
        "--set", f"training.per_device_train_batch_size={batch}",
        "--set", f"training.gradient_accumulation_steps={passes}",
    ]  # fmt: skip


def test_pretraining(
    commands: Any, model: Path, collection: Path, shared: list[str], tmp_path: Path
) -> None:
    command: list[str | Path] = [
        "pretrain",
        "--recipe",
        "bow",
        collection,
        "--model",
        model,
        *shared,
    ]
    command += ["--set", "max_length=32", "--set", "probes.every=3", "--output"]
    one, two, passes = tmp_path / "one", tmp_path / "two", tmp_path / "passes"
    commands.succeed(*command, one, *split(_GLOBAL_BATCH))
    launched(commands, *command, two, *split(_GLOBAL_BATCH // 2))
    assert_same_training(one, two)
    interrupt_after(3, two)
    commands.succeed(*command, two, *split(_GLOBAL_BATCH // 2), processes=2)
    assert_same_training(one, two)
    commands.succeed(*command, passes, *split(_GLOBAL_BATCH // 4, passes=4))
    assert_same_training(one, passes)


def test_pretraining_with_decoders_and_pairs(
    commands: Any,
    model: Path,
    collection: Path,
    settings: Callable[..., list[str]],
    tmp_path: Path,
) -> None:
    steps = 6
    # A decoder that sees another text, texts of other processes as negatives, visibility drawn by
    # key, a lexicon.
    recipes = ("cotmae", "cocondenser", "retromae", "lexmae")
    for recipe in recipes:
        small = [
            f"training.max_steps={steps}", "training.dropout=0.0", "probes.documents=0",
            "max_length=64",  # longer than most: each process pads its own way
        ]  # fmt: skip
        if recipe.startswith("co"):
            small.append("view.span=16")
        command = ["--recipe", recipe, str(collection), "--model", str(model)]
        command = ["pretrain", *command, *settings(*small)]
        one, two = (str(tmp_path / f"{recipe}-{count}") for count in ("one", "two"))
        commands.succeed(*command, "--output", one, *split(_GLOBAL_BATCH))
        commands.succeed(*command, "--output", two, *split(_GLOBAL_BATCH // 2), processes=2)
        assert_same_training(Path(one), Path(two), steps)


def test_finetuning(
    commands: Any, model: Path, collection: Path, shared: list[str], tmp_path: Path
) -> None:
    # In-batch negatives: the loss of a query depends on the passages of the other process.
    command: list[str | Path] = ["finetune", "--model", model, collection, *shared]
    command += ["--set", "negatives.num_negatives=2", "--output"]
    one, two = tmp_path / "one", tmp_path / "two"
    commands.succeed(*command, one, *split(_GLOBAL_BATCH))
    # In chunks too: neither half of the batch is ever held as a whole.
    in_chunks = ["--set", "mini_batch_size=5"]
    commands.succeed(*command, two, *split(_GLOBAL_BATCH // 2), *in_chunks, processes=2)
    assert_same_training(one, two)
