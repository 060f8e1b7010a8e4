"""`resume` takes a folder and nothing else: it goes on as it began."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from isthmus.config.output import claimed
from isthmus.errors import InputError, SettingsError
from isthmus.pretraining import pretrain


@pytest.mark.parametrize(
    ("given", "flag"),
    [
        ({"corpus": "docs.jsonl"}, "--corpus"),
        ({"output": "other"}, "--output"),
        ({"model": "other"}, "--model"),
        ({"init": "tiny"}, "--init"),
        ({"settings": ["training.max_steps=80"]}, "--set"),
    ],
)
def test_new_settings_are_refused(given: dict[str, Any], flag: str, tmp_path: Path) -> None:
    with claimed(tmp_path / "run", "pretrain", {"settings": {}}):
        pass
    with pytest.raises(SettingsError) as caught:
        pretrain(resume=str(tmp_path / "run"), **given)
    assert flag in caught.value.what


def test_a_folder_of_another_verb(tmp_path: Path) -> None:
    with claimed(tmp_path / "run", "finetune", {"settings": {}}):
        pass
    with pytest.raises(InputError, match="was made by 'finetune'"):
        pretrain(resume=str(tmp_path / "run"))


@pytest.mark.parametrize("command", [3, ["isthmus", True], {"a": 1}])
def test_a_command_that_cannot_have_been_typed(command: object, tmp_path: Path) -> None:
    with claimed(tmp_path / "run", "finetune", {"settings": {}}):
        pass
    file = tmp_path / "run" / "isthmus.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"command": command}))
    with pytest.raises(InputError, match=r"isthmus.json is damaged"):
        pretrain(resume=str(tmp_path / "run"))


def test_a_folder_of_nobody(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="was not written by isthmus"):
        pretrain(resume=str(tmp_path))
