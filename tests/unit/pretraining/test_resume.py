"""`resume` takes a folder and nothing else: it goes on as it began."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from isthmus.config.output import claimed
from isthmus.errors import InputError, SettingsError
from isthmus.pretraining.pretrain import pretrain


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
    with pytest.raises(InputError, match="was made by `isthmus finetune`"):
        pretrain(resume=str(tmp_path / "run"))
