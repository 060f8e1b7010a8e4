"""Measures something while training runs, keeps the best model, and says how the numbers went."""

from __future__ import annotations

import importlib.util
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

import torch
import torch.distributed as dist
import transformers

from isthmus.config.output import whole_folder, write_json, writing
from isthmus.progress import notice
from isthmus.training.callbacks import EvaluationStopped
from isthmus.training.graphs import lacks_memory
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
        """Evaluates the model to start from; in a resumed run, where a signal prevented it."""
        earlier = evaluations(state.log_history, self.topic)
        if self._is_due(state) and all(line["step"] != state.global_step for line in earlier):
            self._evaluate(state, control)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Evaluates every so many steps, and after the last step."""
        if self._is_due(state):
            # Interruption, which comes after this, asks for the checkpoint.
            with suppress(EvaluationStopped):
                self._evaluate(state, control)

    def _is_due(self, state: Any) -> bool:
        steps = _steps(self.every, state.max_steps)
        if self.every < 1:
            steps = max(steps, self.at_least)
        due: bool = state.global_step % steps == 0 or state.global_step == state.max_steps
        return due

    def _evaluate(self, state: Any, control: Any) -> None:
        self.trainer.evaluating = True
        try:
            values = self._measured()
        finally:
            self.trainer.evaluating = False
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


class Curve(Protocol):
    """How to read a number that is measured again and again."""

    @property
    def better(self) -> Better:
        """Whether higher or lower values are better."""

    @property
    def drawn(self) -> tuple[str, ...]:
        """Further numbers to draw in the same panel."""


def report_curves(
    history: Sequence[Mapping[str, float]],
    topic: str,
    curves: Mapping[str, Curve],
    output: Path,
    name: str,
) -> str:
    """Writes NAME.tsv and NAME.svg into a folder; returns first, best and last values."""
    rows = evaluations(history, topic)
    if not rows:
        return ""
    # Sorted: a log that was read back has them in another order than one that was just written.
    names = sorted(key for key in rows[-1] if key.startswith(f"{topic}/"))
    table, plot = output / f"{name}.tsv", output / f"{name}.svg"
    with writing(output):
        lines = ["\t".join(["step", *(key.removeprefix(f"{topic}/") for key in names)])]
        lines += ["\t".join(str(row.get(key, "")) for key in ["step", *names]) for row in rows]
        table.write_text("\n".join(lines) + "\n", encoding="utf-8")
        plotted = _plot(rows, topic, curves, plot)
    summary = [_line(key, rows, f"{topic}/{key}", curve) for key, curve in curves.items()]
    where = f"{table}" + (f", {plot}" if plotted else "; for a plot: pip install 'isthmus[report]'")
    return "\n".join([*summary, f"{name}: {where}"])


def _line(name: str, rows: Sequence[Mapping[str, float]], key: str, curve: Curve) -> str:
    values = [row[key] for row in rows]
    best = best_place(values, curve.better)
    return (
        f"{name:<14} {values[0]:8.4f} at the start, {values[-1]:8.4f} at the end, "
        f"best ({curve.better}) {values[best]:8.4f} at step {int(rows[best]['step']):,}"
    ) + "".join(
        f", {further} {rows[-1][f'{key}/{further}']:.4f}"
        for further in curve.drawn
        if f"{key}/{further}" in rows[-1]
    )


def _plot(
    rows: Sequence[Mapping[str, float]], topic: str, curves: Mapping[str, Curve], file: Path
) -> bool:
    """One panel per curve, with the lines that explain it; False where matplotlib is missing."""
    if importlib.util.find_spec("matplotlib") is None:
        return False
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.6 * len(curves), 3.0), layout="constrained")
    panels: Any = figure.subplots(1, len(curves), squeeze=False)[0]
    steps = [row["step"] for row in rows]
    for panel, (name, curve) in zip(panels, curves.items(), strict=True):
        panel.plot(steps, [row[f"{topic}/{name}"] for row in rows], marker=".", label=name)
        for line in curve.drawn:
            values = [row.get(f"{topic}/{name}/{line}") for row in rows]
            panel.plot(steps, values, linestyle="--", linewidth=1, label=line)
        panel.set_title(f"{name} ({curve.better} is better)", fontsize=9)
        panel.set_xlabel("optimiser step", fontsize=8)
        panel.tick_params(labelsize=8)
        if curve.drawn:
            panel.legend(fontsize=7)
    figure.savefig(file)
    return True
