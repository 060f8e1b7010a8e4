"""`isthmus benchmark speed`: a table, files that keep it, and refusals, as users meet them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

SMALL = (
    "--set", "rounds=2", "--set", "steps=2", "--set", "warm_up=1",
    "--set", "pretrain.training.bf16=false",
)  # fmt: skip


def test_two_recipes_on_real_lengths(
    commands: Any, collection: Path, model: Path, tmp_path: Path
) -> None:
    output = tmp_path / "speed"
    shape = ("--length", "24", "--batch", "4", "--corpus", collection, "--model", model)
    chosen = ("--recipe", "bow", "--recipe", "retromae")
    command = ("benchmark", "speed", *shape, *chosen, "--output", output, *SMALL)
    ended = commands.succeed(*command, plots=True)
    rows = json.loads((output / "results.json").read_text(encoding="utf-8"))["rows"]
    names = ["plain Hugging Face", "mlm", "bow", "retromae"]
    assert [row["recipe"] for row in rows] == names
    for row, name in zip(rows, names, strict=True):
        assert row["error"] is None
        assert (row["length"], row["texts"], len(row["rates"])) == (24, 4, 2)
        assert min(row["rates"]) > 0
        assert 0 < row["of_chip"] < 1
        assert row["useful"] < row["chip"]
        assert name in ended.stdout
    plain, masked_lm, bow, retromae = rows
    assert plain["against_plain"] == 1
    assert (masked_lm["lost"], masked_lm["of_masked_lm"]) == (0, 1)
    # The plain loop and our own have the same texts, and the same useful work.
    assert plain["operations"] == pytest.approx(masked_lm["operations"], rel=1e-12)
    assert masked_lm["operations"] < bow["operations"] < retromae["operations"]
    assert 0 < bow["lost_by_arithmetic"] < retromae["lost_by_arithmetic"] < 1
    assert (bow["lost_in_paper"], retromae["lost_in_paper"]) == (0.012, 0.682)
    table = (output / "table.md").read_text(encoding="utf-8")
    assert "| 4 × 24 | retromae |" in table
    assert "68.2%" in table
    assert "retromae" in (output / "speed.svg").read_text(encoding="utf-8")
    assert json.loads((output / "isthmus.json").read_text(encoding="utf-8"))["complete"]


def test_random_texts_need_no_folder(commands: Any) -> None:
    shape = ("--init", "tiny", "--set", "vocabulary=500", "--length", "16", "--tokens", "64")
    ended = commands.succeed("benchmark", "speed", *shape, "--recipe", "mlm", *SMALL)
    assert "4 × 16" in ended.stdout
    assert "random tokens" in ended.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--recipe", "retormae"), ("retormae", "retromae")),
        (("--length", "513"), ("513", "at most 512", "--length 512")),
        (("--init", "bass"), ("bass", "base")),
        (("--batch", "4", "--tokens", "64"), ("either batch", "tokens")),
        (("--corpus", "nowhere.jsonl"), ("nowhere.jsonl",)),
    ],
)
def test_what_cannot_be_timed_is_refused(
    commands: Any, arguments: tuple[str, ...], said: tuple[str, ...]
) -> None:
    small = () if "--init" in arguments else ("--init", "tiny")
    ended = commands.run("benchmark", "speed", *small, "--set", "vocabulary=500", *arguments)
    assert ended.returncode == 2
    assert "Traceback" not in ended.stderr
    for part in ("where:", "allowed:", "to do:", *said):
        assert part in ended.stderr
