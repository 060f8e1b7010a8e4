"""Killed at any moment and run again, every job ends as if nothing had happened."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file


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
    mine, other = (load_file(folder / "final" / "model.safetensors") for folder in (one, two))
    assert mine.keys() == other.keys()
    for name in mine:
        np.testing.assert_allclose(mine[name], other[name], rtol=1e-4, atol=1e-6, err_msg=name)


def contents(folder: Path, *patterns: str) -> dict[str, bytes]:
    """The bytes of every file of these patterns, by name."""
    files = [file for pattern in patterns for file in folder.rglob(pattern) if file.is_file()]
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


def names(folder: Path) -> frozenset[str]:
    """What lies below a folder at this moment; things may vanish while we look."""
    walked = os.walk(folder)
    return frozenset(f"{parent}/{name}" for parent, *inside in walked for name in chain(*inside))


def checkpoints(output: Path) -> frozenset[Path]:
    """The checkpoints that are complete at this moment."""
    return frozenset(output.glob("checkpoint-*/complete.json"))


def test_tokenising_and_pretraining(
    commands: Any,
    killed: Callable[..., Counter[str]],
    model: Path,
    settings: Callable[..., list[str]],
    write_corpus: Callable[[Path, int], Path],
    tmp_path: Path,
) -> None:
    corpus = write_corpus(tmp_path / "corpus.jsonl", 13_000)  # four blocks
    steps = 30
    shared: list[str | Path] = ["pretrain", "--corpus", corpus, "--model", model]
    shared += settings("max_length=32", f"training.max_steps={steps}", "probes.documents=20")
    reference, output = tmp_path / "reference", tmp_path / "output"
    commands.succeed(*shared, "--output", reference, cache=tmp_path / "cache")

    cache = commands.folder / "cache"
    earlier = set(cache.rglob("manifest.json"))

    def stage() -> str:
        return "training" if set(cache.rglob("manifest.json")) - earlier else "tokenising"

    def progress() -> object:
        return names(cache), checkpoints(output)

    least = {"training": 3}
    # On two cores, whose workers are killed too; the reference was tokenised on one.
    hits = killed([*shared, "--output", output], progress, 7, 0.3, stage, least, cores=2)
    assert hits["tokenising"] >= 2
    assert hits["training"] >= 3

    assert_same_training(reference, output, steps)
    expected = contents(tmp_path / "cache", "*.arrow", "manifest.json")
    found = contents(cache, "*.arrow", "manifest.json")
    assert len(expected) == 5
    assert {name: found[name] for name in expected} == expected


def test_finetuning(
    commands: Any,
    killed: Callable[..., Counter[str]],
    model: Path,
    collection: Path,
    settings: Callable[..., list[str]],
    tmp_path: Path,
) -> None:
    steps = 24  # more than an epoch: negatives rotate and the order is drawn anew
    shared: list[str | Path] = ["finetune", "--model", model, "--collection", collection]
    shared += settings(f"training.max_steps={steps}", "negatives.num_negatives=3")
    reference, output = tmp_path / "reference", tmp_path / "output"
    commands.succeed(*shared, "--output", reference, cache=tmp_path / "cache")

    def stage() -> str:
        return "training" if (output / "negatives.npy").is_file() else "mining"

    def progress() -> object:
        made = [names(commands.folder / "cache" / kind) for kind in ("indexes", "candidates")]
        return made, checkpoints(output)

    least = {"training": 3}
    hits = killed([*shared, "--output", output], progress, 7, 0.3, stage, least)
    assert hits["training"] >= 3

    assert_same_training(reference, output, steps)
    assert contents(output, "negatives.npy") == contents(reference, "negatives.npy")


@pytest.mark.parametrize("kind", ["dense", "bm25"])
def test_indexing(
    kind: str,
    commands: Any,
    killed: Callable[..., Counter[str]],
    model: Path,
    write_corpus: Callable[[Path, int], Path],
    tmp_path: Path,
) -> None:
    corpus = write_corpus(tmp_path / "corpus.jsonl", 1_500 if kind == "dense" else 10_000)
    retriever = model if kind == "dense" else "bm25"
    shared: list[str | Path] = [
        "index",
        "--corpus",
        corpus,
        "--model",
        retriever,
        "--set",
        "block_size=100",
    ]
    if kind == "bm25":
        shared += ["--set", "memory=0.001"]  # many blocks are spilled, each a recorded step
    reference, output = tmp_path / "reference", tmp_path / "output"
    if kind == "dense":
        commands.succeed(*shared, "--output", reference, cache=tmp_path / "cache")
    else:  # the installed command itself, in a process that was not forked
        isthmus = [str(Path(sys.executable).with_name("isthmus")), *map(str, shared)]
        environment = {**commands.environment, "ISTHMUS_CACHE": str(tmp_path / "cache")}
        subprocess.run([*isthmus, "--output", reference], env=environment, check=True)

    building = tmp_path / ".output.building"

    def progress() -> object:
        file = building / "progress.json"
        return file.read_bytes() if file.is_file() else names(building)

    longest = 0.2 if kind == "dense" else 0.1
    hits = killed([*shared, "--output", output], progress, kills=5, longest=longest)
    assert hits.total() >= 3

    patterns = ("*.npy", "*.arrow", "*.index.json", "manifest.json")
    assert contents(output, *patterns) == contents(reference, *patterns)
    assert len(contents(output, *patterns)) >= 3
    assert not building.exists()
    commands.succeed("search", output, "ba")


def test_a_half_written_index_is_refused(
    commands: Any,
    model: Path,
    write_corpus: Callable[[Path, int], Path],
    tmp_path: Path,
) -> None:
    corpus = write_corpus(tmp_path / "corpus.jsonl", 2_000)
    output = tmp_path / "output"
    commands.start(
        "index", "--corpus", corpus, "--model", model, "--output", output, "--set", "block_size=50"
    )
    while not (tmp_path / ".output.building" / "progress.json").is_file():
        assert commands.wait(0.01) is None
    assert commands.kill().returncode == -signal.SIGKILL

    refused = commands.run("search", output, "ba")
    assert refused.returncode == 2
    assert "is not built" in refused.stderr
    assert "run the same `isthmus index` command again" in refused.stderr


def test_an_index_that_lost_a_part_is_refused(
    commands: Any, write_corpus: Callable[[Path, int], Path], tmp_path: Path
) -> None:
    corpus = write_corpus(tmp_path / "corpus.jsonl", 50)
    index = tmp_path / "index"
    commands.succeed("index", "--corpus", corpus, "--output", index)
    largest = max(index.glob("*.npy"), key=lambda file: file.stat().st_size)
    largest.write_bytes(largest.read_bytes()[:-8])  # a copy that did not come to its end

    refused = commands.run("search", index, "ba")
    assert refused.returncode == 2
    assert f"damaged: {largest.name!r}: it has" in refused.stderr

    largest.unlink()
    assert f"damaged: {largest.name!r}: it is missing" in commands.run("search", index, "ba").stderr
    (index / "manifest.json").unlink()
    assert "half-written: it has no manifest.json" in commands.run("search", index, "ba").stderr


def test_a_torn_checkpoint_is_removed(
    commands: Any,
    model: Path,
    collection: Path,
    settings: Callable[..., list[str]],
    tmp_path: Path,
) -> None:
    output = tmp_path / "output"
    command = ["pretrain", "--corpus", collection, "--model", model, "--output", output]
    command += settings("max_length=32", "training.max_steps=24", "training.save_total_limit=9")
    command += ["--set", "probes.documents=0"]
    commands.start(*command)
    while not (output / "checkpoint-6" / "complete.json").is_file():
        assert commands.wait(0.01) is None
    assert commands.kill().returncode == -signal.SIGKILL
    for later in output.glob("checkpoint-*"):
        if int(later.name.partition("-")[2]) > 6:
            shutil.rmtree(later)
    # As if the disk had kept half of a checkpoint: the folder is there, the last file is not.
    torn = output / "checkpoint-999"
    shutil.copytree(output / "checkpoint-6", torn)
    (torn / "complete.json").unlink()
    (torn / "optimizer.pt").unlink()

    ended = commands.succeed(*command)
    assert "checkpoint-6\n" in ended.stderr
    assert "checkpoint-999" not in ended.stderr
    assert not torn.exists()
    assert [entry["step"] for entry in losses(output)] == list(range(1, 25))
