"""The command `isthmus research benchmark`: every run of a protocol, on all devices there are."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from isthmus.benchmarks.protocol.plan import Plan, Step
from isthmus.benchmarks.protocol.runs import RUNS
from isthmus.benchmarks.protocol.settings import Protocol, write_protocol
from isthmus.benchmarks.report.report import REPORT, report
from isthmus.benchmarks.runner.schedule import Schedule
from isthmus.benchmarks.runner.steps import RunFolder
from isthmus.benchmarks.runner.workers import Workers, attempt
from isthmus.config import Overrides, find_recipe
from isthmus.config.output import claimed, finish
from isthmus.errors import InputError, SettingsError
from isthmus.progress import Bar, notice

_FIX = "download them, or name the folder that holds the data: --data FOLDER"
_PER_GPU = 6  # processes: small models leave most of a large card idle


@dataclass(frozen=True)
class Outcome:
    """How far a benchmark has come."""

    folder: Path
    done: int
    left: int
    failed: dict[str, str]
    """The reason of every run or model that failed; the same call tries them again."""
    missing: dict[str, str]
    """Data and models that are not on this machine, each with the reason; of a dry run alone."""
    jobs: tuple[str, ...] = ()
    """What is left to do, in its order; of a dry run alone."""

    def __str__(self) -> str:
        missing = [f"missing: {name}: {reason}" for name, reason in self.missing.items()]
        if missing:
            missing.append(_FIX)
        counts = f"{self.done:,} done, {self.left:,} left, {len(self.failed):,} failed"
        return "\n".join([*self.jobs, *missing, f"{self.folder}: {counts}"])


def benchmark(
    protocol: str,
    output: str | Path,
    *,
    data: str | None = None,
    workers: int | None = None,
    time_limit: float | None = None,
    only: Sequence[str] = (),
    dry_run: bool = False,
    settings: Protocol | Overrides = None,
) -> Outcome:
    """Runs what is left of a protocol's runs in a folder; returns how far it came."""
    for name, value in (("workers", workers), ("time-limit", time_limit)):
        if value is not None and not value >= 0:  # nor NaN
            raise SettingsError(f"--{name} = {value} cannot be used", "give 0 or more")
    chosen = Protocol.given(settings, {"data": data}, protocol)
    folder, written = Path(output), find_recipe(protocol, Protocol.verb)
    deadline = None if time_limit is None else time.monotonic() + time_limit
    plan = Plan(chosen, written.file)
    schedule = Schedule(plan, plan.chosen(only), RunFolder.of(plan, folder))
    if dry_run:
        return replace(_outcome(schedule), jobs=tuple(_jobs(schedule)))
    if plan.missing:
        names = "\n".join(f"  {name}: {reason}" for name, reason in plan.missing.items())
        raise InputError(
            f"{len(plan.missing)} of the data and models of the protocol {written.name} are "
            f"missing:\n{names}",
            _FIX,
        )
    with claimed(folder, Protocol.verb, {"protocol": written.name}):
        write_protocol(folder, chosen, written.name)
        schedule.remove_models()
        _run(schedule, workers, deadline)
        outcome = _outcome(schedule)
        finish(folder, {"done": outcome.done, "left": outcome.left, "failed": outcome.failed})
    if any((folder / RUNS).glob("*.json")):
        report(folder)
        notice(f"report: {folder / REPORT / 'report.html'}")
    return outcome


def _run(schedule: Schedule, workers: int | None, deadline: float | None) -> None:
    """Does all steps, until there are none or time is up."""

    def left() -> float | None:
        return None if deadline is None else max(0.0, deadline - time.monotonic())

    if workers == 0:
        while left() != 0.0 and (step := schedule.next()) is not None:
            _settle(schedule, step, attempt(step, schedule.place))
        return
    if not schedule.waiting:
        return
    import torch

    count = workers or max(1, _PER_GPU * torch.cuda.device_count())
    pool = Workers(min(count, len(schedule.waiting)), schedule.place)
    steps = schedule.waiting.values()
    try:
        with Bar("running", len(steps), "steps") as bar:
            while (seconds := left()) != 0.0:
                while pool.free and (step := schedule.next()) is not None:
                    pool.begin(step)
                if not pool.busy:
                    return
                for step, reason in pool.ended(seconds):
                    _settle(schedule, step, reason)
                    again = step.name in schedule.waiting
                    bar.advance(0 if again else 1, note=f"{pool.busy} at work")
        notice(f"time is up: {pool.busy} steps that were running begin again")
    finally:
        pool.stop()


def _settle(schedule: Schedule, step: Step, reason: str | None) -> None:
    """Counts a step that has ended, well or not."""
    if reason is None:
        schedule.finish(step)
    elif schedule.fail(step, reason):
        notice(f"{step.name} is tried once more: {reason}")
    else:
        notice(f"{step.name} FAILED: {reason}")


def _jobs(schedule: Schedule) -> Iterator[str]:
    """The steps that are left, a line each, and what they come to."""
    steps = schedule.waiting.values()
    for step in steps:
        yield f"{step.name}, after {', '.join(step.needs)}" if step.needs else step.name
    counted = Counter(step.work for step in steps)
    tokens = sum(step.tokens for step in steps if step.work == "pretrain")
    works = ", ".join(f"{number:,} {work}" for work, number in counted.items())
    yield f"jobs: {works or 'none'}; {tokens:,.0f} tokens of pre-training"


def _outcome(schedule: Schedule) -> Outcome:
    names = {*schedule.chosen}
    done, failed = len(names & schedule.done), names & schedule.failed.keys()
    return Outcome(
        schedule.place.folder,
        done,
        len(names) - done - len(failed),
        {name: schedule.failed[name] for name in sorted(failed)},
        schedule.plan.missing,
    )
