"""Probes while training runs: measured, logged, plotted; the best model kept, an early end."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import transformers

from isthmus.config.output import whole_folder, write_json
from isthmus.pretrain.probe import HeldOut, Probe, ProbeSettings
from isthmus.pretrain.step import PretrainTask
from isthmus.progress import notice
from isthmus.training.trainer import STOPPED_EARLY, Trainer

PREFIX = "probe/"
BEST = "best"
_BEST_FILE = "probe.json"


class Probing(transformers.TrainerCallback):  # type: ignore[misc]
    """Measures every so many steps, before the first and after the last; keeps the best model.

    Only the first process measures; all of them hear the result, because all must stop together.
    """

    def __init__(
        self,
        trainer: Trainer,
        probes: Mapping[str, Probe],
        held_out: Callable[[], HeldOut],
        settings: ProbeSettings,
    ) -> None:
        self.trainer = trainer
        self.probes = probes
        self.settings = settings
        self._prepare = held_out
        self._held_out: HeldOut | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Where training starts from; a resumed run has measured it already."""
        if state.global_step == 0:
            self._look(state, control)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """When it is time, and after the last step."""
        every = self.settings.every
        steps = max(1, math.ceil(every * state.max_steps)) if every < 1 else int(every)
        if state.global_step % steps == 0 or state.global_step == state.max_steps:
            self._look(state, control)

    def _look(self, state: Any, control: Any) -> None:
        values = self._measured()
        chosen = self.settings.best_by
        if chosen is not None:
            earlier = [look[PREFIX + chosen] for look in looks(state.log_history)]
            if self._improves(values[PREFIX + chosen], earlier):
                self._keep(state.global_step, values[PREFIX + chosen])
        self._log(values, control)
        patience = self.settings.patience
        if chosen is not None and patience is not None:
            seen = [look[PREFIX + chosen] for look in looks(state.log_history)]
            if len(seen) - 1 - self._best_place(seen) >= patience:
                notice(f"{chosen} has not improved for {patience} looks: stop")
                self._log({STOPPED_EARLY: float(state.global_step)}, control)
                control.should_training_stop = True
                control.should_save = True

    def _log(self, values: dict[str, float], control: Any) -> None:
        # transformers takes any line for the one with the losses, which may be still to come.
        wanted = control.should_log
        self.trainer.log(values)
        control.should_log = wanted

    def _measured(self) -> dict[str, float]:
        values: list[dict[str, float]] = [{}]
        if self.trainer.is_world_process_zero():
            values[0] = self._measure()
        if self.trainer.args.world_size > 1:
            dist.broadcast_object_list(values, src=0)
        return values[0]

    def _measure(self) -> dict[str, float]:
        if self._held_out is None:
            self._held_out = self._prepare()
        task = self.trainer.task
        assert isinstance(task, PretrainTask)
        arguments = self.trainer.args
        was_training = task.training
        task.eval()
        values = {}
        with (
            torch.no_grad(),
            torch.autocast(arguments.device.type, torch.bfloat16, enabled=arguments.bf16),
        ):
            for name, probe in self.probes.items():
                for metric, value in probe(task, self._held_out).items():
                    values[f"{PREFIX}{name}/{metric}" if metric else PREFIX + name] = value
        self._held_out.forget()
        task.train(was_training)
        return values

    def _improves(self, value: float, earlier: Sequence[float]) -> bool:
        if math.isnan(value):
            return False
        return not earlier or self._best_place([*earlier, value]) == len(earlier)

    def _best_place(self, values: Sequence[float]) -> int:
        """Of the first of the best values."""
        assert self.settings.best_by is not None
        sign = 1 if self.probes[self.settings.best_by].better == "higher" else -1
        ranked = [-math.inf if math.isnan(value) else sign * value for value in values]
        return ranked.index(max(ranked))

    def _keep(self, step: int, value: float) -> None:
        if self.trainer.is_world_process_zero():
            with whole_folder(Path(self.trainer.args.output_dir) / BEST) as folder:
                self.trainer.task.save(folder)
                write_json(folder / _BEST_FILE, {"step": step, self.settings.best_by: value})


def looks(history: Sequence[Mapping[str, float]]) -> list[dict[str, float]]:
    """The lines of a log that probes wrote."""
    return [dict(line) for line in history if any(name.startswith(PREFIX) for name in line)]


def best_step(output: Path) -> int:
    """The step of the model in `best`."""
    step: int = json.loads((output / BEST / _BEST_FILE).read_text(encoding="utf-8"))["step"]
    return step
