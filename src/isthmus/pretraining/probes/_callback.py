"""Probes while training runs: what training/evaluation.py measures in pre-training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from isthmus.pretraining.probes._base import Probe, measure, own_numbers
from isthmus.pretraining.probes._held_out import HeldOut
from isthmus.pretraining.settings import ProbeSettings
from isthmus.pretraining.task import PretrainTask
from isthmus.training.evaluation import Best, EvaluationCallback, evaluations, report_curves
from isthmus.training.trainer import Trainer

TOPIC = "probe"


class Probing(EvaluationCallback):
    """Calls every probe at each evaluation."""

    def __init__(
        self,
        trainer: Trainer,
        probes: Mapping[str, Probe],
        held_out: Callable[[], HeldOut],
        settings: ProbeSettings,
    ) -> None:
        best = None
        if settings.best_by is not None:
            best = Best(settings.best_by, probes[settings.best_by].better, settings.patience)
        super().__init__(trainer, TOPIC, self._ask, settings.every, best)
        self.probes = probes
        self._prepare = held_out
        self._best_by = settings.best_by
        self._held_out: HeldOut | None = None

    def _ask(self) -> dict[str, float]:
        task = self.trainer.task
        assert isinstance(task, PretrainTask)
        if self._held_out is None:
            self._held_out = self._prepare()
            for name, probe in self.probes.items():
                probe.prepare(task, self._held_out, decides=name == self._best_by)
        return measure(self.probes, task, self._held_out)


def report_probes(
    history: Sequence[Mapping[str, float]], probes: Mapping[str, Probe], output: Path
) -> str:
    """Writes table and plot into a folder; returns where each probe began, was best and ended."""
    told = report_curves(history, TOPIC, probes, output, "probes")
    if not told:
        return ""
    seen = evaluations(history, TOPIC)
    remarks = [
        probe.remark([own_numbers(line, f"{TOPIC}/{name}") for line in seen])
        for name, probe in probes.items()
    ]
    return "\n".join([told, *(remark for remark in remarks if remark is not None)])
