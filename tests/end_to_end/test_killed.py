"""What a killed command leaves is refused, or completed by the same command."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from isthmus.indexes.segments.index import open_index


def losses(output: Path) -> list[dict[str, float]]:
    """Every logged loss by step, without times and rates."""
    log = json.loads((output / "isthmus.json").read_text(encoding="utf-8"))["results"]["log"]
    steps = [entry for entry in log if "loss" in entry]
    return [{name: entry[name] for name in entry if "_per_" not in name} for entry in steps]


def test_a_half_written_index_is_refused_and_completed(
    commands: Any,
    model: Path,
    write_corpus: Callable[[Path, int], Path],
    tmp_path: Path,
) -> None:
    corpus = write_corpus(tmp_path / "corpus.jsonl", 2_000)
    output, building = tmp_path / "output", tmp_path / ".output.building"
    command = ["index", "--corpus", corpus, "--model", model, "--output", output]
    command += ["--set", "block_size=50"]
    commands.kill_when((building / "progress.json").is_file, *command)

    refused = commands.run("search", output, "ba")
    assert refused.returncode == 2
    assert "is not complete" in refused.stderr
    assert "run the same `isthmus index` command again" in refused.stderr

    commands.succeed(*command)
    assert not building.exists()
    assert len(open_index(output).store) == 2_000
    commands.succeed("search", output, "ba")


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
    assert f"{largest.name}' is damaged: it has" in refused.stderr

    largest.unlink()
    assert "' is damaged: it is missing" in commands.run("search", index, "ba").stderr
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
    commands.kill_when((output / "checkpoint-6" / "complete.json").is_file, *command)
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
