"""Killed at any moment and run again, every job ends as if nothing had happened."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file


def uninterrupted(cache: Path, *arguments: str | Path) -> None:
    """Runs the installed command itself, with a cache that the killed one does not see."""
    command = [str(Path(sys.executable).with_name("isthmus")), *map(str, arguments)]
    environment = {**os.environ, "ISTHMUS_CACHE": str(cache)}
    subprocess.run(command, env=environment, check=True, capture_output=True)


def losses(output: Path) -> list[dict[str, float]]:
    """Every logged loss by step, without times and rates."""
    log = json.loads((output / "isthmus.json").read_text(encoding="utf-8"))["results"]["log"]
    steps = [entry for entry in log if "loss" in entry]
    return [{name: entry[name] for name in entry if "_per_" not in name} for entry in steps]


def assert_same_training(one: Path, two: Path, steps: int) -> None:
    assert [entry["step"] for entry in losses(one)] == list(range(1, steps + 1))
    assert len(losses(one)) == len(losses(two))
    for left, right in zip(losses(one), losses(two), strict=True):
        assert left == pytest.approx(right, rel=1e-5)
    left, right = (load_file(folder / "final" / "model.safetensors") for folder in (one, two))
    assert left.keys() == right.keys()
    for name in left:
        np.testing.assert_allclose(left[name], right[name], rtol=1e-4, atol=1e-6, err_msg=name)


def contents(folder: Path, *patterns: str) -> dict[str, bytes]:
    """The bytes of every file of these patterns, by name."""
    files = [file for pattern in patterns for file in folder.rglob(pattern) if file.is_file()]
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


def names(folder: Path) -> Callable[[], object]:
    """What lies below a folder at this moment."""
    return lambda: frozenset(map(str, folder.rglob("*")))


def checkpoints(output: Path) -> Callable[[], object]:
    """The checkpoints that are complete at this moment."""
    return lambda: frozenset(map(str, output.glob("checkpoint-*/complete.json")))


def test_tokenising_and_pretraining(
    commands: Any,
    killed: Callable[..., int],
    model: Path,
    settings: Callable[..., list[str]],
    write_corpus: Callable[[Path, int], Path],
    tmp_path: Path,
) -> None:
    corpus = write_corpus(tmp_path / "corpus.jsonl", 20_000)  # five blocks
    steps = 24
    shared = ["pretrain", "--corpus", corpus, "--model", model]
    shared += settings("max_length=32", f"training.max_steps={steps}")
    reference, output = tmp_path / "reference", tmp_path / "output"
    uninterrupted(tmp_path / "cache", *shared, "--output", reference)

    cache = commands.folder / "cache" / "tokenised"
    command = [*shared, "--output", output]
    assert killed(command, names(cache), kills=4, longest=1.0) >= 3
    assert killed(command, checkpoints(output), kills=5, longest=0.5) >= 4
    commands.succeed(*command)

    assert_same_training(reference, output, steps)
    expected = contents(tmp_path / "cache", "*.arrow", "manifest.json")
    found = contents(commands.folder / "cache", "*.arrow", "manifest.json")
    assert len(expected) == 6
    assert {name: found[name] for name in expected} == expected


def test_finetuning(
    commands: Any,
    killed: Callable[..., int],
    model: Path,
    collection: Path,
    settings: Callable[..., list[str]],
    tmp_path: Path,
) -> None:
    steps = 24  # more than an epoch: negatives rotate and the order is drawn anew
    shared = ["finetune", "--model", model, "--collection", collection]
    shared += settings(f"training.max_steps={steps}", "negatives.num_negatives=3")
    reference, output = tmp_path / "reference", tmp_path / "output"
    uninterrupted(tmp_path / "cache", *shared, "--output", reference)

    command = [*shared, "--output", output]
    assert killed(command, names(output), kills=2, longest=0.3) >= 1
    assert killed(command, checkpoints(output), kills=5, longest=0.5) >= 4
    commands.succeed(*command)

    assert_same_training(reference, output, steps)
    assert contents(output, "negatives.npy") == contents(reference, "negatives.npy")


@pytest.mark.parametrize("kind", ["dense", "bm25"])
def test_indexing(
    kind: str,
    commands: Any,
    killed: Callable[..., int],
    model: Path,
    write_corpus: Callable[[Path, int], Path],
    tmp_path: Path,
) -> None:
    corpus = write_corpus(tmp_path / "corpus.jsonl", 6_000)
    retriever = model if kind == "dense" else "bm25"
    shared = ["index", "--corpus", corpus, "--model", retriever, "--set", "block_size=200"]
    reference, output = tmp_path / "reference", tmp_path / "output"
    uninterrupted(tmp_path / "cache", *shared, "--output", reference)

    building = tmp_path / ".output.building"
    progress = building / "progress.json"

    def recorded() -> object:
        if kind == "dense":
            return progress.read_text(encoding="utf-8") if progress.is_file() else None
        return None if not building.is_dir() else {file.stat().st_ino for file in building.iterdir()}

    command = [*shared, "--output", output]
    assert killed(command, recorded, kills=5, longest=0.15) >= 3
    assert not output.exists()
    half = commands.run("search", output, "ba")
    assert half.returncode == 2
    assert "half-written" in half.stderr
    assert "run the same `isthmus index` command again" in half.stderr

    commands.succeed(*command)
    patterns = ("*.npy", "*.arrow", "*.index.json", "manifest.json")
    assert contents(output, *patterns) == contents(reference, *patterns)
    assert len(contents(output, *patterns)) >= 3
    assert not building.exists()
    commands.succeed("search", output, "ba")
