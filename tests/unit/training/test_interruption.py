"""What happens when training is stopped, or goes wrong, in the middle."""

from __future__ import annotations

import json
import math
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor, nn

import isthmus
from isthmus.errors import SettingsError, TrainingError
from isthmus.training.checkpoints import last_checkpoint
from isthmus.training.evaluation import Best, EvaluationCallback
from isthmus.training.settings import TrainingSettings
from isthmus.training.task import Batch, Examples, Task
from isthmus.training.trainer import Trainer


class Line(Task):
    """Learns one number; interrupts or diverges at a chosen step."""

    signal = signal.SIGINT

    def __init__(self, interrupt_at: int | None = None, diverge: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.calls = 0
        self.interrupt_at = interrupt_at
        self.diverge = diverge

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        return {"line": torch.tensor(len(batch["x"]))}

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        self.calls += 1
        if self.calls == self.interrupt_at:
            os.kill(os.getpid(), self.signal)
        factor = math.nan if self.diverge else 1.0
        return {"line": ((self.weight * batch["x"] - 3) ** 2).sum() * factor}

    def weights(self, progress: float) -> Mapping[str, float]:
        return {"line": 1.0}

    def save(self, folder: Path) -> None:
        (folder / "weight.json").write_text(json.dumps(self.weight.item()))

    def restore(self, folder: Path) -> None:
        with torch.no_grad():
            self.weight.fill_(json.loads((folder / "weight.json").read_text()))


class Numbers(Examples):
    @property
    def lengths(self) -> npt.NDArray[np.integer]:
        return np.ones(40, dtype=np.int32)

    def __getitem__(self, key: tuple[int, int]) -> float:
        return float(key[1] % 7)

    def collate(self, examples: list[float]) -> Batch:
        return {"x": torch.tensor(examples)}


def trainer(task: Task, output: Path, logging_steps: int = 3) -> Trainer:
    settings = TrainingSettings(
        per_device_train_batch_size=4,
        max_steps=10,
        learning_rate=0.05,
        logging_steps=logging_steps,
        save_steps=100,
        report_to=[],
        bf16=False,
    )
    return Trainer(task, Numbers(), settings, output)


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({}, [10]),
        ({"save_minutes": 4}, [4, 8, 10]),
        ({"save_minutes": 4, "save_steps": 5}, [5, 10]),
        ({"save_steps": 0.3}, [3, 6, 9, 10]),
    ],
)
def test_checkpoints_are_written_by_time_unless_steps_are_given(
    given: dict[str, float], kept: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = Line()
    a_minute_each = SimpleNamespace(monotonic=lambda: 60.0 * task.calls)
    monkeypatch.setattr("isthmus.training.callbacks.time", a_minute_each)
    usual = {"max_steps": 10, "save_total_limit": None, "report_to": [], "bf16": False}
    settings = TrainingSettings.parse({**usual, "per_device_train_batch_size": 4, **given}, "test")
    Trainer(task, Numbers(), settings, tmp_path).fit()
    found = [int(folder.name.partition("-")[2]) for folder in tmp_path.glob("checkpoint-*")]
    assert sorted(found) == kept


def losses(log: list[dict[str, float]]) -> list[tuple[float, float]]:
    return [(line["loss"], line["line"]) for line in log if "loss" in line]


def test_ctrl_c_keeps_a_checkpoint_and_resume_logs_the_same_losses(tmp_path: Path) -> None:
    uninterrupted = losses(trainer(Line(), tmp_path / "whole").fit())
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        trainer(Line(interrupt_at=5), tmp_path / "torn").fit()
    assert signal.getsignal(signal.SIGINT) is before
    checkpoint = last_checkpoint(tmp_path / "torn")
    assert checkpoint is not None
    assert checkpoint.name == "checkpoint-5"  # between two lines of the log, at 3 and 6
    resumed = losses(trainer(Line(), tmp_path / "torn").fit())
    assert len(uninterrupted) == 3
    np.testing.assert_allclose(resumed, uninterrupted, rtol=1e-6)


def test_sigterm_keeps_a_checkpoint_where_it_is_heeded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminated(Exception):
        """What the command line makes of it."""

    def heed(number: int, frame: object) -> None:
        raise Terminated

    monkeypatch.setattr(Line, "signal", signal.SIGTERM)
    before = signal.signal(signal.SIGTERM, heed)
    try:
        with pytest.raises(Terminated):
            trainer(Line(interrupt_at=5), tmp_path).fit()
        assert signal.getsignal(signal.SIGTERM) is heed
    finally:
        signal.signal(signal.SIGTERM, before)
    checkpoint = last_checkpoint(tmp_path)
    assert checkpoint is not None
    assert checkpoint.name == "checkpoint-5"


def evaluated_every_step(task: Line, output: Path, leave_at: int | None = None) -> Trainer:
    """Measures the weight; a signal arrives within the evaluation of step `leave_at`."""
    made = trainer(task, output)

    def measure() -> dict[str, float]:
        if made.state.global_step == leave_at:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(60)
        return {"weight": task.weight.item()}

    best = Best("weight", "higher")
    made.add_callback(EvaluationCallback(made, "probe", measure, every=1, best=best))
    return made


def measured(log: list[dict[str, float]]) -> list[tuple[float, float]]:
    return [(line["step"], line["probe/weight"]) for line in log if "probe/weight" in line]


@pytest.mark.parametrize("step", [5, 10])
def test_an_evaluation_is_left_at_once_and_made_up_for(step: int, tmp_path: Path) -> None:
    expected = evaluated_every_step(Line(), tmp_path / "whole").fit()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        evaluated_every_step(Line(), tmp_path / "torn", leave_at=step).fit()
    assert time.monotonic() - began < 30
    checkpoint = last_checkpoint(tmp_path / "torn")
    assert checkpoint is not None
    assert checkpoint.name == f"checkpoint-{step}"
    resumed = evaluated_every_step(Line(), tmp_path / "torn").fit()
    assert [one for one, _ in measured(expected)] == list(range(11))
    assert measured(resumed) == measured(expected)
    assert losses(resumed) == losses(expected)
    found = [json.loads((tmp_path / name / "best" / "probe.json").read_text())
             for name in ("whole", "torn")]  # fmt: skip
    assert found[0] == found[1]


def test_before_the_first_step_nothing_is_kept(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        evaluated_every_step(Line(), tmp_path, leave_at=0).fit()
    assert last_checkpoint(tmp_path) is None


def test_a_loss_that_is_no_number_ends_training(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="the loss is nan at step 3") as caught:
        trainer(Line(diverge=True), tmp_path).fit()
    assert "learning_rate" in caught.value.fix


def test_a_tracker_that_is_not_installed_is_refused_before_training(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="the tracker 'tensorbord' is not installed") as caught:
        Trainer(Line(), Numbers(), TrainingSettings(report_to=["tensorbord"]), tmp_path)
    assert caught.value.expected.startswith("tensorboard")
    # Before anything else is looked for.
    chosen = {"training.report_to": "wandbb"}
    with pytest.raises(SettingsError, match="the tracker 'wandbb'"):
        isthmus.pretrain("nowhere", "nowhere", tmp_path, settings=chosen)
    with pytest.raises(SettingsError, match="the tracker 'wandbb'"):
        isthmus.finetune("nowhere", "nowhere", tmp_path, settings=chosen)


def test_parts_that_were_set_aside_train_again() -> None:
    """Whoever looked at a part in between need not set it back."""
    task = Line()
    task.part = part = nn.Dropout()
    for _ in range(2):
        task.train()
        assert part.training
        part.eval()
    task.eval()
    assert not part.training
