"""`isthmus.pretrain` again: resumed, refused, replaced, or repeated from its output."""

from __future__ import annotations

from pathlib import Path

import pytest

import isthmus
from isthmus.config.output import read_snapshot
from isthmus.errors import InputError, OutputError, SettingsError

TEXTS = [f"Bees make honey number {number} in the garden." for number in range(30)]
SMALL = {
    "max_length": 16, "vocabulary": 150, "probes.documents": 0,
    "training": {"max_steps": 2, "per_device_train_batch_size": 4, "report_to": [],
                 "gradient_accumulation_steps": 1},
}  # fmt: skip


def weights(run: Path) -> bytes:
    return (run / "final" / "model.safetensors").read_bytes()


def test_texts_in_memory_and_an_untrained_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, again, seed = (tmp_path / name for name in ("first", "again", "seed"))
    assert isthmus.pretrain(TEXTS, "scratch:2x64", first, settings=SMALL) == first / "final"
    before = weights(first)
    capsys.readouterr()
    isthmus.pretrain(TEXTS, "scratch:2x64", first, settings=SMALL)
    assert "complete already" in capsys.readouterr().err
    with pytest.raises(OutputError) as caught:
        isthmus.pretrain(TEXTS, "scratch:2x64", first, settings={**SMALL, "training.seed": 7})
    assert "settings.training.seed (42 there, 7 here)" in caught.value.what
    assert "--overwrite" in caught.value.fix
    isthmus.pretrain(None, None, again, recipe=first)
    assert weights(again) == before
    isthmus.pretrain(None, None, seed, recipe=first, settings={"training.seed": 7})
    isthmus.pretrain(None, None, first, recipe=seed, overwrite=True)
    assert weights(first) == weights(seed) != before
    assert read_snapshot(first)["identity"]["settings"]["training"]["seed"] == 7


def test_what_is_wrong_with_a_model_of_no_weights(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="no size 'tinny'"):
        isthmus.pretrain(TEXTS, "scratch:tinny", tmp_path)
    with pytest.raises(SettingsError, match="'documents' is missing"):
        isthmus.pretrain(None, "scratch:tiny", tmp_path)
    with pytest.raises(InputError, match="only `isthmus pretrain` makes"):
        isthmus.load_encoder("scratch:tiny")
