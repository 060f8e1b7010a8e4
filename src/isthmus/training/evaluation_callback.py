"""Evaluation during training: measures are logged, the best model is kept, training may stop."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
import torch.distributed as dist
import transformers

from isthmus.config.output import whole_folder, write_json
from isthmus.progress import notice
from isthmus.training.cuda_graphs import lacks_memory
from isthmus.training.trainer import STOPPED_EARLY, Trainer

BEST = "best"  # the folder of the best model so far
Better = Literal["higher", "lower"]
Measured = TypeVar("Measured")


@dataclass(frozen=True)
class Best:
    """The number that decides which model is kept and, with patience, when training stops."""

    name: str
    better: Better = "higher"
    patience: int | None = None
    from_step: float = 0  # no earlier model is kept; below 1: a share of all steps


class EvaluationCallback(transformers.TrainerCallback):  # type: ignore[misc]
    """Measures every so many steps, before the first and after the last; keeps the best model.

    Only the first process measures, and broadcasts the result: all processes must stop together.

    Args:
        trainer: Its model is evaluated.
        topic: The numbers are logged as `TOPIC/NAME`.
        measure: The numbers by name; called in evaluation mode, without gradient.
        every: Steps between two evaluations; below 1: a share of all steps.
        best: None: no model is kept.
        at_least: Steps between two evaluations, where `every` is a share.

    """

    def __init__(
        self,
        trainer: Trainer,
        topic: str,
        measure: Callable[[], Mapping[str, float]],
        every: float,
        best: Best | None = None,
        at_least: int = 1,
    ) -> None:
        self.trainer = trainer
        self.topic = topic
        self.measure = measure
        self.every = every
        self.best = best
        self.at_least = at_least

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Evaluates the model to start from; a resumed run has done so already."""
        if state.global_step == 0:
            self._evaluate(state, control)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Evaluates every so many steps, and after the last step."""
        steps = _steps(self.every, state.max_steps)
        if self.every < 1:
            steps = max(steps, self.at_least)
        if state.global_step % steps == 0 or state.global_step == state.max_steps:
            self._evaluate(state, control)

    def _evaluate(self, state: Any, control: Any) -> None:
        values = self._measured()
        first = 0 if self.best is None else _steps(self.best.from_step, state.max_steps)
        if self.best is None or state.global_step < first:
            self._log(values, control)
            return
        watched = f"{self.topic}/{self.best.name}"
        earlier = evaluations(state.log_history, self.topic)
        counted = [line for line in earlier if line["step"] >= first]
        seen = [line[watched] for line in (*counted, values)]
        waited = len(seen) - 1 - best_place(seen, self.best.better)
        if waited == 0 and not math.isnan(seen[-1]):
            self._keep(self.best, state.global_step, seen[-1])
        self._log(values, control)
        if self.best.patience is not None and waited >= self.best.patience:
            notice(f"{self.best.name} has not improved for {self.best.patience} evaluations: stop")
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
            measured = evaluated(self.trainer, self.measure)
            values[0] = {f"{self.topic}/{name}": value for name, value in measured.items()}
        if self.trainer.args.world_size > 1:
            dist.broadcast_object_list(values, src=0)
        return values[0]

    def _keep(self, best: Best, step: int, value: float) -> None:
        if self.trainer.is_world_process_zero():
            with whole_folder(Path(self.trainer.args.output_dir) / BEST) as folder:
                self.trainer.task.save(folder)
                write_json(folder / f"{self.topic}.json", {"step": step, best.name: value})


def evaluated(trainer: Trainer, measure: Callable[[], Measured]) -> Measured:
    """What `measure` returns, without dropout and gradients, in the precision of the training.

    Out of memory, it runs a second time without the memory that CUDA graphs held.
    """
    try:
        with _evaluating(trainer):
            return measure()
    except RuntimeError as error:
        if not lacks_memory(error) or not trainer.make_room():
            raise
    with _evaluating(trainer):
        return measure()


@contextmanager
def _evaluating(trainer: Trainer) -> Iterator[None]:
    task, arguments = trainer.task, trainer.args
    was_training = task.training
    task.eval()
    trainer.evaluating = True
    with (
        torch.no_grad(),
        torch.autocast(arguments.device.type, torch.bfloat16, enabled=arguments.bf16),
        # Compiling once more, for evaluation, takes longer than the evaluation.
        torch.compiler.set_stance("force_eager") if trainer.compiled else nullcontext(),
    ):
        try:
            yield
        finally:
            task.train(was_training)
            trainer.evaluating = False


def _steps(given: float, steps: int) -> int:
    """A number of steps, given as such or, below 1, as a share of all."""
    return math.ceil(given * steps) if given < 1 else int(given)


def best_place(values: Sequence[float], better: Better) -> int:
    """The place of the best value, the first of equals; 0 where none is a number."""
    sign = 1 if better == "higher" else -1
    ranked = [-math.inf if math.isnan(value) else sign * value for value in values]
    return ranked.index(max(ranked))


def evaluations(history: Sequence[Mapping[str, float]], topic: str) -> list[dict[str, float]]:
    """The lines of a log that hold the measures of a topic."""
    return [dict(line) for line in history if any(name.startswith(f"{topic}/") for name in line)]


def best_evaluation(output: Path, topic: str) -> dict[str, float]:
    """The step of the model in `best`, and the number that decided."""
    found: dict[str, float] = json.loads(
        (output / BEST / f"{topic}.json").read_text(encoding="utf-8")
    )
    return found
