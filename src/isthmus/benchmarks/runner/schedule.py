"""Which step comes next: what is left, what waits for what, what failed, what is not needed."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable

from isthmus.benchmarks.protocol.plan import Plan, Step
from isthmus.benchmarks.protocol.runs import read_result
from isthmus.benchmarks.runner.steps import RunFolder
from isthmus.errors import MismatchError

_TRIES = 2


class Schedule:
    """The steps that the chosen ones need and that are not done, in their order."""

    def __init__(self, plan: Plan, chosen: Iterable[Step], place: RunFolder) -> None:
        self.plan, self.place = plan, place
        self.chosen = [step.name for step in chosen]
        self.done = {step.name for step in plan.steps.values() if self._is_done(step)}
        self.failed: dict[str, str] = {}
        self.waiting = self._needed(self.chosen)
        self._tries = Counter[str]()

    def _is_done(self, step: Step) -> bool:
        if step.run is None:
            return self.place.has(step)
        file = step.run.file(self.place.folder)
        if not os.path.lexists(file):
            return False
        result = read_result(file)
        if result.settings != step.digest and not self.plan.missing:
            parts = dict(step.parts.items() - result.parts.items())
            raise MismatchError(
                f"{file} was made with other settings or data: {', '.join(parts)}",
                "choose another --output, or remove the file to repeat the run",
            )
        return True

    def _needed(self, names: Iterable[str]) -> dict[str, Step]:
        """These steps and those they need, as far as they are not done, in their order."""
        found: set[str] = set()
        left = [*names]
        while left:
            name = left.pop()
            if name not in found and name not in self.done:
                found.add(name)
                left += self.plan.steps[name].needs
        return {name: step for name, step in self.plan.steps.items() if name in found}

    def next(self) -> Step | None:
        """The next step that can begin; it is not waiting any more."""
        for name, step in self.waiting.items():
            if self.done.issuperset(step.needs):
                return self.waiting.pop(name)
        return None

    def finish(self, step: Step) -> None:
        """Counts a step as done, and removes the models that no run that is left needs."""
        self.done.add(step.name)
        if step.run is not None:
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
        """Marks a step and all that wait for it as failed."""
        self.failed[step.name] = reason
        for other in [one for one in self.waiting.values() if step.name in one.needs]:
            if self.waiting.pop(other.name, None) is not None:
                self._give_up(other, f"{step.name}: {reason}")

    def remove_models(self) -> None:
        """Removes the models that neither runs that are left nor their models need."""
        runs = [step.name for step in self.plan.steps.values() if step.run is not None]
        needed = {name for step in self._needed(runs).values() for name in step.needs}
        for name in self.place.models.keys() - needed - {"base"}:
            self.done.discard(name)
            self.place.remove(name)
