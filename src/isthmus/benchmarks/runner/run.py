"""The command `isthmus research benchmark`: every run of a protocol, on all devices there are."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from isthmus.benchmarks.protocol.plan import Plan
from isthmus.benchmarks.protocol.runs import RUNS
from isthmus.benchmarks.protocol.settings import PROTOCOL, Protocol, read_protocol, write_protocol
from isthmus.benchmarks.report.report import REPORT, report
from isthmus.benchmarks.runner.schedule import Schedule
from isthmus.benchmarks.runner.steps import MODELS, WORK, RunFolder
from isthmus.benchmarks.runner.workers import Ended, Workers, attempt
from isthmus.config import Overrides, find_recipe
from isthmus.config.output import SNAPSHOT, only_writer, write_snapshot, writing
from isthmus.errors import InputError, OutputError, SettingsError
from isthmus.progress import notice, result

_OURS = (RUNS, MODELS, PROTOCOL, SNAPSHOT, WORK, "logs", REPORT)
_PER_GPU = 6  # processes: small models leave most of a large card idle
_LOOK = 1.0  # seconds between two looks at the clock
_SAY = 30.0  # seconds between two lines of progress where nothing ends


@dataclass(frozen=True)
class Outcome:
    """How far a benchmark has come."""

    folder: Path
    done: int
    left: int
    failed: dict[str, str]
    """The reason of every chosen run or model that failed."""
    missing: dict[str, str]
    """Data and models that are not on this machine, each with the reason; of a dry run alone."""


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
    """Runs what is left of a protocol's runs in a folder; returns how far it came.

    Args:
        protocol: Name of a shipped protocol, or path of a YAML file.
        output: Folder of results. Runs whose files are in OUTPUT/runs are done.
        data: Folder that {data} in the protocol stands for (default: data).
        workers: Number of worker processes (default: 6 per GPU, 1 without; 0 runs in this process).
        time_limit: Seconds after which nothing runs any more; the same call again resumes.
        only: Names, or patterns, of runs and models.
        dry_run: Print what is missing on this machine, then the jobs, and run nothing.
        settings: Settings over the protocol's.

    """
    _check_at_least_0("workers", workers, "processes")
    _check_at_least_0("time_limit", time_limit, "seconds")
    chosen = Protocol.given(settings, {"data": data}, protocol)
    folder, written = Path(output), find_recipe(protocol, Protocol.verb)
    deadline = None if time_limit is None else time.monotonic() + time_limit
    _check_folder(folder, written.name)
    plan = Plan(chosen, written.file)
    schedule = Schedule(plan, plan.chosen(only), RunFolder.of(plan, folder))
    missing = [f"  {name}: {reason}" for name, reason in plan.missing.items()]
    if dry_run:
        result("\n".join([*(["missing:"] if missing else []), *missing, *_jobs(schedule)]))
        return _outcome(schedule)
    if missing:
        raise InputError(
            f"{len(missing)} of the data and models of the protocol {written.name} are missing:\n"
            + "\n".join(missing),
            "download them, or name the folder that holds the data: --data FOLDER",
        )
    with only_writer(folder):
        write_protocol(folder, chosen, written.name)
        schedule.remove_models()
        _run(schedule, workers, deadline)
        outcome = _outcome(schedule)
        identity = {"protocol": written.name, "settings": chosen.model_dump(mode="json")}
        results = {"done": outcome.done, "left": outcome.left, "failed": outcome.failed}
        write_snapshot(folder, Protocol.verb, identity, results)
    if not (deadline and outcome.left) and any((folder / RUNS).glob("*.json")):
        report(folder)
        notice(f"report: {folder / REPORT / 'report.html'}")
    return outcome


def _check_at_least_0(name: str, value: float | None, of: str) -> None:
    if value is not None and not value >= 0:  # nor NaN
        raise SettingsError(
            f"--{name.replace('_', '-')} = {value} cannot be used", f"give 0 or more {of}"
        )


def _check_folder(folder: Path, name: str) -> None:
    """Refuses a folder that holds something else, or another benchmark."""
    with writing(folder):
        found = sorted(p.name for p in folder.iterdir()) if folder.is_dir() else []
    foreign = [entry for entry in found if entry not in _OURS and not entry.startswith(".")]
    holds = ", ".join(foreign[:3]) or ("a file" if folder.is_file() else "")
    if PROTOCOL in found and (other := read_protocol(folder)[0]) != name:
        holds = f"the benchmark {other!r}, not {name!r}"
    if holds:
        raise OutputError(
            f"--output {str(folder)!r} holds something else: {holds}",
            "choose another --output: a new folder, or one of this benchmark",
        )


def _run(schedule: Schedule, workers: int | None, deadline: float | None) -> None:
    def left() -> float | None:
        return None if deadline is None else deadline - time.monotonic()

    if not schedule.waiting:
        return
    if workers == 0:
        while (step := schedule.next(left())) is not None:
            began, reason = time.monotonic(), attempt(step, schedule.place)
            _settle(schedule, Ended(step, time.monotonic() - began, reason))
        return
    pool = Workers(min(workers or _at_once(), len(schedule.waiting)), schedule.place)
    said = 0.0
    try:
        while True:
            seconds = left()
            while pool.free and (step := schedule.next(seconds)) is not None:
                pool.begin(step)
            if not pool.running:
                return
            if time.monotonic() - said > _SAY:
                said = time.monotonic()
                notice(_line(schedule, pool))
            if seconds is not None and seconds <= 0:
                notice(f"time is up: {len(pool.running)} steps that were running begin again")
                return
            for one in pool.ended(_LOOK if seconds is None else min(_LOOK, seconds)):
                _settle(schedule, one)
                said = 0.0
    finally:
        pool.stop()


def _at_once() -> int:
    import torch

    return max(1, _PER_GPU * torch.cuda.device_count())


def _settle(schedule: Schedule, ended: Ended) -> None:
    """Counts a step that has ended, well or not."""
    if ended.reason is None:
        schedule.finish(ended.step, ended.seconds)
    elif schedule.fail(ended.step, ended.reason):
        notice(f"{ended.step.name} is tried once more: {ended.reason}")
    else:
        notice(f"{ended.step.name} FAILED: {ended.reason}")


def _counts(schedule: Schedule) -> str:
    done, left, failed = schedule.counts()
    return f"runs: {done:,} done, {left:,} left, {failed:,} failed"


def _line(schedule: Schedule, pool: Workers) -> str:
    now = Counter(step.work for step in pool.running)
    what = ", ".join(f"{number} {work}" for work, number in now.items())
    minutes = schedule.seconds_left(len(pool.running)) / 60
    to_go = f"; about {minutes:,.0f} min to go" if minutes else ""
    return f"{_counts(schedule)}; running: {what}{to_go}"


def _jobs(schedule: Schedule) -> list[str]:
    """The steps that are left, a line each, and what they come to."""
    steps = schedule.waiting.values()
    works = Counter(step.work for step in steps)
    counted = ", ".join(f"{number:,} {work}" for work, number in works.items())
    tokens = sum(step.tokens for step in steps if step.work == "pretrain")
    return [
        *(step.name + (f", after {', '.join(step.needs)}" if step.needs else "") for step in steps),
        f"{_counts(schedule)}; jobs: {counted or 'none'}; {tokens:,.0f} tokens of pre-training",
    ]


def _outcome(schedule: Schedule) -> Outcome:
    done, left, _ = schedule.counts()
    chosen = {step.name for step in schedule.chosen}
    failed = {name: why for name, why in sorted(schedule.failed.items()) if name in chosen}
    return Outcome(schedule.place.folder, done, left, failed, schedule.plan.missing)
