"""What cannot be looked at is refused before anything is read, with the folder that can."""

from __future__ import annotations

from pathlib import Path

import pytest

from isthmus.config.output import write_snapshot
from isthmus.errors import InputError, SettingsError
from isthmus.inspection.negatives import negatives


def test_a_pipeline_is_looked_at_stage_by_stage(tmp_path: Path) -> None:
    identity = {"settings": {"stages": {"first": {}, "second": {}}}}
    results = {"stages": {"first": "first-12ab", "second": "second-34cd"}}
    write_snapshot(tmp_path, "finetune", identity, results)
    with pytest.raises(InputError) as caught:
        negatives(str(tmp_path))
    assert caught.value.expected == "first-12ab, second-34cd"
    assert caught.value.fix == f"isthmus research negatives {tmp_path / 'first-12ab'}"


def test_what_was_not_fine_tuned_has_no_negatives(tmp_path: Path) -> None:
    write_snapshot(tmp_path, "pretrain", {"settings": {}}, {})
    with pytest.raises(InputError, match="is not the output of one stage of fine-tuning"):
        negatives(str(tmp_path))


def test_a_recipe_of_several_stages(tmp_path: Path) -> None:
    recipe = tmp_path / "two.yaml"
    recipe.write_text(
        "verb: finetune\nsummary: Two.\nsettings:\n  stages: {first: {}, second: {}}\n",
        encoding="utf-8",
    )
    with pytest.raises(SettingsError, match="there are several stages: first, second"):
        negatives("c", model="m", recipe=str(recipe))
    with pytest.raises(SettingsError, match="there are several stages: 3"):
        negatives("c", model="m", recipe=str(recipe), settings=["stages=3"])


def test_a_run_is_looked_at_as_it_is(tmp_path: Path) -> None:
    write_snapshot(tmp_path, "finetune", {"settings": {}}, {})
    with pytest.raises(SettingsError, match="audited as it was trained"):
        negatives(str(tmp_path), settings=["negatives.range_min=3"])


def test_a_collection_needs_a_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="a tokenizer is needed"):
        negatives(str(tmp_path))
