"""An earlier output folder as a recipe: its settings, and what has changed since."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from isthmus.config import resolve
from isthmus.config.output import claimed, notice_changes, read_snapshot
from isthmus.config.recipes import earlier_run
from isthmus.errors import InputError, SettingsError

IDENTITY: dict[str, Any] = {
    "settings": {"documents": "notes", "model": "m", "max_length": 64, "view": {"name": "same"}},
    "data": {"documents": "f00", "model": "f01"},
}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    with claimed(tmp_path / "run", "pretrain", IDENTITY):
        pass
    return tmp_path / "run"


def test_its_settings_are_the_recipe(run: Path) -> None:
    values = resolve("pretrain", str(run), {"model": "other", "output": "o"}, ["max_length=32"])
    expected = {**IDENTITY["settings"], "model": "other", "output": "o", "max_length": 32}
    assert values == expected


def test_a_run_of_another_command_is_refused(run: Path) -> None:
    with pytest.raises(SettingsError, match="was made by `isthmus pretrain`"):
        resolve("finetune", str(run))


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="was not written by isthmus"):
        resolve("pretrain", str(tmp_path))


def test_a_shipped_recipe_wins_over_a_folder_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bow").mkdir()
    monkeypatch.chdir(tmp_path)
    assert "objectives" in resolve("pretrain", "bow")
    with pytest.raises(InputError, match="was not written by isthmus"):
        resolve("pretrain", "./bow")


def test_what_has_changed_since_is_said(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    earlier = earlier_run(str(run), "pretrain")
    assert earlier == read_snapshot(run)
    notice_changes(earlier, IDENTITY)
    assert not capsys.readouterr().err
    earlier["versions"]["numpy"] = "0.1"
    settings = {**IDENTITY["settings"], "model": "other"}
    notice_changes(
        {**earlier, "commit": "c0ffee"},
        {"settings": settings, "data": {"documents": "f02", "model": "f03"}},
    )
    said = capsys.readouterr().err
    assert "numpy: 0.1 then" in said
    assert "commit: c0ffee then" in said
    assert "documents: not what it was" in said
    assert "model:" not in said, "another one was named"
