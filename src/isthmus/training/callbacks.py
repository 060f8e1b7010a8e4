"""Callbacks of every training: the epoch of the order, checkpoints by time, progress, Ctrl-C."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

import torch
import transformers
from torch import distributed

from isthmus.progress import Bar, notice
from isthmus.training.task import EpochOrder

if TYPE_CHECKING:
    from isthmus.training.trainer import Trainer


class SetEpoch(transformers.TrainerCallback):  # type: ignore[misc]
    """Sets the epoch of the example order."""

    # accelerate's own set_epoch does not reach a sampler inside both a shard and a skip wrapper,
    # which a resumed run on several processes has.
    def __init__(self, order: EpochOrder) -> None:
        self.order = order

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Counts whole epochs, also when a run is resumed inside one."""
        self.order.epoch = math.floor(state.epoch + 1e-6)


class SaveByTime(transformers.TrainerCallback):  # type: ignore[misc]
    """Asks for a checkpoint whenever so many minutes have passed since the last one."""

    _TOGETHER = 32  # steps, after which several processes agree whether it is time

    def __init__(self, minutes: float) -> None:
        self.seconds = 60 * minutes

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Starts the clock."""
        self.last = time.monotonic()

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Starts the clock anew, whatever the checkpoint was written for."""
        self.last = time.monotonic()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """After every optimiser step."""
        due = time.monotonic() - self.last >= self.seconds
        if distributed.is_available() and distributed.is_initialized():
            if state.global_step % self._TOGETHER:
                return
            first = torch.tensor([due], dtype=torch.uint8, device=args.device)
            distributed.broadcast(first, 0)
            due = bool(first.item())
        control.should_save = control.should_save or due


class ShowProgress(transformers.TrainerCallback):  # type: ignore[misc]
    """A bar with the steps and the latest losses, closed however training ends."""

    def __init__(self, description: str) -> None:
        self.description = description
        self.latest: dict[str, float] = {}

    def __enter__(self) -> None:
        self.bar = Bar(self.description, unit="steps")

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self.bar.__exit__(kind, error, trace)

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Starts the bar, at the checkpoint's step in a resumed run."""
        self.bar.total = state.max_steps
        self.bar.done = self.bar.before = state.global_step
        self.bar.__enter__()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """After every optimiser step."""
        self.bar.advance()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        """Shows the latest value of every logged loss and probe."""
        hidden = ("grad_norm", "epoch", "learning_rate", "total_flos", "stopped_early")
        if any(name.startswith("train_") for name in logs or {}):  # the summary at the end
            return
        for name, value in (logs or {}).items():
            # A probe's main number; its details are in the log and the plot.
            if name not in hidden and name.count("/") < (2 if name.startswith("probe/") else 3):
                self.latest[name] = value
        shown = " ".join(f"{name} {value:.3f}" for name, value in self.latest.items())
        if self.bar.total is None:  # what is measured before the first step
            self.bar.note = shown
        else:
            self.bar.advance(0, shown)


class EvaluationStopped(KeyboardInterrupt):
    """An evaluation was left by a signal; the resumed run makes up for it."""


class Interruption(transformers.TrainerCallback):  # type: ignore[misc]
    """On Ctrl-C, finishes the current step, leaves an evaluation, writes a checkpoint, and stops.

    Before the first step of this process it stops at once: there is nothing to keep. SIGTERM does
    the same where it has a handler, as on the command line.
    """

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.stepped = False
        self.wanted = 0  # the signal that was received
        self.before: dict[int, Any] = {}
        self.process = os.getpid()

    def __enter__(self) -> None:
        # Several processes that stopped at different steps would wait for each other forever.
        alone = os.environ.get("WORLD_SIZE", "1") == "1"
        self.can_listen = alone and threading.current_thread() is threading.main_thread()
        for number in (signal.SIGINT, signal.SIGTERM) if self.can_listen else ():
            if callable(before := signal.getsignal(number)):
                self.before[number] = before
                signal.signal(number, self._note)

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        for number, before in self.before.items():
            signal.signal(number, before)
        if self.wanted and kind is None:
            self.before[self.wanted](self.wanted, None)

    def _note(self, number: int, frame: Any) -> None:
        # A second signal, any in a worker process, and one that loses no step, acts at once.
        step, evaluating = self.trainer.state.global_step, self.trainer.evaluating
        if self.wanted or os.getpid() != self.process or not self.stepped:
            self.before[number](number, frame)
        self.wanted = number
        first = "" if evaluating else f"finishing step {step + 1:,}, then "
        notice(f"interrupted: {first}writing a checkpoint (again: stop at once)")
        if evaluating:
            raise EvaluationStopped

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Before every optimiser step."""
        self.stepped = True

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """After every optimiser step."""
        if self.wanted:
            control.should_save = True
            control.should_training_stop = True
