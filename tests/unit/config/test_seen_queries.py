"""Queries that a model has seen are known of every model that is trained from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from isthmus.config.output import read_snapshot, write_snapshot
from isthmus.config.seen_queries import SEEN, all_seen, seen

_FINETUNED: dict[str, Any] = {"settings": {"split": "train"}, "data": {"collection": "ab"}}


def test_what_a_model_saw_stays_with_what_is_trained_from_it(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for run in (first, second):
        run.mkdir()
    write_snapshot(first, "finetune", _FINETUNED, {"selection": {"split": "dev"}})
    write_snapshot(second, "pretrain", {"settings": {"model": str(first)}}, {})
    found = all_seen(read_snapshot(second), {}, [first / "final"])
    write_snapshot(second, "pretrain", {}, {SEEN: found})
    for run in (first, second):
        assert "NO TEST" in str(seen(str(run / "final"), "ab", "train"))
        assert "flatters" in str(seen(str(run), "ab", "dev"))
        assert seen(str(run), "ab", "test") is None


def test_trained_on_outweighs_chosen_by(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    found = [{"collection": "ab", "trained": "train", "chosen": "dev"},
             {"collection": "ab", "trained": "dev", "chosen": None}]  # fmt: skip
    write_snapshot(tmp_path / "run", "finetune", {}, {SEEN: found})
    assert "NO TEST" in str(seen(str(tmp_path / "run"), "ab", "dev"))


def test_drawn_queries_are_those_of_no_collection(tmp_path: Path) -> None:
    drawn = {**_FINETUNED, "settings": {"split": "train", "pseudo_queries": {"share": 1}}}
    (tmp_path / "run").mkdir()
    write_snapshot(tmp_path / "run", "finetune", drawn, {})
    assert seen(str(tmp_path / "run"), "ab", "train") is None


def test_stages_lead_nowhere_else(tmp_path: Path) -> None:
    for name in ("other", "run"):
        (tmp_path / name).mkdir()
    write_snapshot(tmp_path / "other", "finetune", _FINETUNED, {})
    write_snapshot(tmp_path / "run", "pretrain", {}, {"stages": {"one": "../other"}})
    assert seen(str(tmp_path / "run"), "ab", "train") is None
