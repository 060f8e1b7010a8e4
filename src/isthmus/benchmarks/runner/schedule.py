"""Which step comes next: what is left, what waits for what, what failed, what is not needed."""

from __future__ import annotations

import os
import shutil
from collections import defaultdict
from collections.abc import Iterable, Mapping
from statistics import fmean

from isthmus.benchmarks.protocol.cells import CellResult, damaged, read_result, write_result
from isthmus.benchmarks.protocol.plan import Plan, Step
from isthmus.benchmarks.runner.steps import MODELS, WORK, Place
from isthmus.config.output import environment
from isthmus.errors import MismatchError
from isthmus.evaluation.measures import parse_measure

_TRIES = 2
# Seconds of a step before any of its kind was measured, and tokens per second of training.
_OVERHEAD = {"base": 60.0, "pretrain": 15.0, "teacher": 60.0, "cell": 25.0}
_RATE = 2e6


class Schedule:
    """The steps that the chosen ones need and that are not done, in their order."""

    def __init__(self, plan: Plan, chosen: Iterable[Step], place: Place) -> None:
        self.plan, self.place = plan, place
        self.chosen = list(chosen)
        self.done = {step.name for step in plan.steps.values() if self._is_done(step)}
        self.failed: dict[str, str] = {}
        self.waiting = self._needed(self.chosen)
        self._tries: dict[str, int] = defaultdict(int)
        self._seconds: dict[str, list[float]] = defaultdict(list)
        self._ratios: dict[str, list[float]] = defaultdict(list)  # to a guess, by work

    def _is_done(self, step: Step) -> bool:
        if step.cell is None:
            return self.place.has(step)
        file = step.cell.file(self.place.folder)
        if not os.path.lexists(file):
            return False
        result = read_result(file)
        if result.status == "done" and result.settings != step.digest:
            if self.plan.absent:  # only looked at: of what is not here no digest is known
                return False
            differing = [
                name for name, part in step.parts.items() if result.parts.get(name) != part
            ]
            raise MismatchError(
                f"{file} was made with other settings or data: "
                f"{', '.join(differing) or 'which is not known'}",
                "choose another --output, or remove the file to repeat the run",
            )
        if result.status != "done":
            return False
        measures = [str(parse_measure(name, answers=True)) for name in step.measures]
        if without := result.lacking((test.collection for test in step.tests), measures):
            raise damaged(file, f"{' and '.join(measures)} of {', '.join(without)} are not there")
        return True

    def _needed(self, steps: Iterable[Step]) -> dict[str, Step]:
        """These steps and those they need, as far as they are not done, in their order."""
        found: dict[str, Step] = {}
        left = [step for step in steps if step.name not in self.done]
        while left:
            step = left.pop()
            if step.name not in found:
                found[step.name] = step
                left += [self.plan.steps[n] for n in step.needs if n not in self.done]
        # A model goes before the first cell that needs it; the base before everything.
        return dict(
            sorted(found.items(), key=lambda item: (item[1].order, item[1].cell is not None))
        )

    def next(self, seconds: float | None) -> Step | None:
        """The next step that can begin, and end in so many seconds; it is not waiting any more."""
        for name, step in self.waiting.items():
            ready = self.done.issuperset(step.needs)
            if ready and (seconds is None or self.expected(step) <= seconds):
                return self.waiting.pop(name)
        return None

    def finish(self, step: Step, seconds: float) -> None:
        """Counts a step as done, and removes the models that no cell that is left needs."""
        self.done.add(step.name)
        self._seconds[_alike(step)].append(seconds)
        self._ratios[step.work].append(seconds / _guess(step))
        if step.cell is not None:
            self.remove_models()

    def fail(self, step: Step, reason: str) -> bool:
        """Counts a failure; True if the step is tried once more."""
        self._tries[step.name] += 1
        if self._tries[step.name] < _TRIES:
            self.waiting[step.name] = step  # behind all others: it may have lacked memory
            return True
        self._give_up(step, reason)
        return False

    def _give_up(self, step: Step, reason: str) -> None:
        """Marks a step and all that wait for it as failed; a cell gets a row with the reason."""
        self.failed[step.name] = reason
        if step.cell is not None:
            result = CellResult(
                cell=step.cell, status="failed", reason=reason, settings=step.digest,
                parts=dict(step.parts), machine=environment(),
            )  # fmt: skip
            write_result(self.place.folder, result)
            return
        for other in [one for one in self.waiting.values() if step.name in one.needs]:
            if self.waiting.pop(other.name, None) is not None:
                self._give_up(other, f"{step.name}: {reason}")

    def remove_models(self) -> None:
        """Removes the models that neither cells that are left nor their models need.

        Also what a step left in its folder of work, if it was killed after its model was whole.
        """
        cells = [step for step in self.plan.steps.values() if step.cell is not None]
        needed = {name for step in self._needed(cells).values() for name in step.needs}
        for name, folder in self.place.folders.items():
            if name not in needed and name != "base":
                self.done.discard(name)
                for parent in (MODELS, WORK):
                    shutil.rmtree(self.place.folder / parent / folder, ignore_errors=True)

    def expected(self, step: Step) -> float:
        """The seconds that a step takes: as others like it took, or a guess scaled by others."""
        if known := self._seconds.get(_alike(step)):
            return fmean(known)
        return _guess(step) * fmean(self._ratios[step.work] or [1.0])

    def seconds_left(self, running: Mapping[str, float], workers: int) -> float:
        """About how long it takes until nothing waits or runs."""
        begun = (max(0.0, self.expected(self.plan.steps[n]) - t) for n, t in running.items())
        return (sum(map(self.expected, self.waiting.values())) + sum(begun)) / max(1, workers)

    def counts(self) -> tuple[int, int, int]:
        """How many of the chosen steps are done, left and failed."""
        names = [step.name for step in self.chosen]
        done, failed = (sum(n in group for n in names) for group in (self.done, self.failed))
        return done, len(names) - done - failed, failed


def _guess(step: Step) -> float:
    """The seconds of a step on a large GPU, alone."""
    tokens = 0.0 if step.cell is not None else step.tokens
    return _OVERHEAD[step.work] + tokens / _RATE


def _alike(step: Step) -> str:
    """A name for steps that take about as long."""
    if step.cell is not None:
        return f"cell {step.cell.task} {step.cell.kind}"
    return f"{step.work} {step.name.rpartition('/p')[0]}"
