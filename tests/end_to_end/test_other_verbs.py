"""list, doctor, quickstart and hybrid search, as the command line runs them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module")
def bm25(commands: Any, collection: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("indexes") / "bm25"
    commands.succeed("index", collection, "--output", folder)
    return folder


@pytest.fixture(scope="module")
def dense(
    commands: Any, collection: Path, model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    folder: Path = tmp_path_factory.mktemp("indexes") / "dense"
    commands.succeed("index", collection, "--model", model, "--output", folder)
    return folder


def test_a_run_as_a_recipe_repeats_it_to_the_last_bit(
    commands: Any, model: Path, tmp_path: Path
) -> None:
    again = commands.succeed("pretrain", "--recipe", model, "--output", tmp_path / "again")
    assert "its fingerprint differs" not in again.stderr
    before, after = (
        folder / "final" / "model.safetensors" for folder in (model, tmp_path / "again")
    )
    assert before.read_bytes() == after.read_bytes()
    itself = commands.succeed("pretrain", "--recipe", model, "--output", model)
    assert "is complete already" in itself.stderr


def test_doctor_finds_what_is_wrong(
    commands: Any, collection: Path, bm25: Path, model: Path, tmp_path: Path
) -> None:
    ended = commands.run("doctor", collection, bm25, model)
    assert ended.returncode == 0, ended.stdout
    assert "every checksum holds" in " ".join(ended.stdout.split())
    damaged = tmp_path / "index"
    shutil.copytree(bm25, damaged)
    file = next(damaged.rglob("*.npy"))
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    broken = tmp_path / "broken"
    shutil.copytree(collection, broken)
    with (broken / "queries.jsonl").open("a", encoding="utf-8") as stream:
        stream.write("no json\n")
    for thing in (damaged, broken):
        ended = commands.run("doctor", thing)
        assert ended.returncode == 1, ended.stdout
        assert "wrong" in ended.stdout


def test_quickstart_compares_what_each_step_brings(
    commands: Any, model: Path, tmp_path: Path
) -> None:
    output = tmp_path / "quickstart"
    short = [
        "packages=[email, http, logging, json]", f"model={model}",
        "splits={test: [email]}", "adapt.pooling=mean", "adapt.similarity=cosine",
        "adapt.finetune.training.max_steps=3",
        "adapt.finetune.training.per_device_train_batch_size=8",
        "adapt.finetune.stages.labelled.training.max_steps=2",
    ]  # fmt: skip
    settings = [part for setting in short for part in ("--set", setting)]
    ended = commands.succeed("quickstart", "--output", output, *settings)
    found = json.loads((output / "adapted" / "report.json").read_text(encoding="utf-8"))
    steps = ["original", "adapted", "labelled"]
    fused = [f"{step} + BM25{more}" for more in ("", " + tokens") for step in steps]
    assert found["report"]["systems"] == ["BM25", *steps, *fused]
    assert "next: isthmus " in ended.stdout
    assert "email" in commands.succeed("search", output / "adapted" / "index", "a header").stdout


def test_explain_and_inspect_after_a_search(
    commands: Any, collection: Path, model: Path, tmp_path: Path
) -> None:
    asked = json.loads((collection / "queries.jsonl").read_text().splitlines()[0])["text"]
    both = tmp_path / "both"
    commands.succeed("index", collection, "-m", "bm25", "-m", model, "-o", both)
    (best, *_) = json.loads(commands.succeed("search", both, asked, "--json").stdout)["hits"]
    why = json.loads(commands.succeed("explain", both, asked, best["id"], "--json").stdout)
    parts = why["fusion"]["parts"]
    assert why["rank"] == 1
    assert sum(one["contribution"] for one in parts) == pytest.approx(best["score"])
    words, _, _ = parts
    terms = words["explanation"]["terms"]
    assert sum(one["contribution"] for one in terms) == pytest.approx(
        words["explanation"]["score"], rel=1e-5
    )
    ended = commands.run("explain", both, asked, "nowhere")
    assert ended.returncode == 2
    assert "has no document 'nowhere'" in ended.stderr
    output = tmp_path / "inspected"
    for _ in range(2):  # the same command finds its own folder
        shown = commands.succeed(
            "research", "inspect", model, asked, "--coverage", collection, "--output", output
        )
        assert "most frequent" in shown.stdout
    found = json.loads((output / "report.json").read_text(encoding="utf-8"))
    assert {*found["coverage"]} == {str(model), "most frequent", "ceiling"}
