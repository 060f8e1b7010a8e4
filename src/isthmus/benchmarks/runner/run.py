"""The verb `isthmus benchmark run`: every cell of a protocol, on all devices there are."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from isthmus.benchmarks.protocol.cells import CELLS
from isthmus.benchmarks.protocol.plan import Plan
from isthmus.benchmarks.protocol.settings import PROTOCOL, Protocol, read_protocol, write_protocol
from isthmus.benchmarks.report.report import REPORT, benchmark_report
from isthmus.benchmarks.runner.schedule import Schedule
from isthmus.benchmarks.runner.steps import MODELS, WORK, Place
from isthmus.benchmarks.runner.workers import Ended, Here, Workers, devices
from isthmus.config import Overrides, find_recipe
from isthmus.config.output import SNAPSHOT, only_writer, write_snapshot, writing
from isthmus.errors import InputError, OutputError, SettingsError
from isthmus.progress import notice, result

_OURS = (CELLS, MODELS, PROTOCOL, SNAPSHOT, WORK, "logs", REPORT, "results")
_PER_GPU = 6  # processes: small models leave most of a large card idle
_LOOK = 1.0  # seconds between two looks at the clock
_SAY = 30.0  # seconds between two lines of progress where nothing ends


@dataclass(frozen=True)
class Outcome:
    """How far a benchmark has come."""

    folder: Path
    done: int
    left: int
    failed: dict[str, str]  # the reason of every chosen cell or model that failed


def benchmark(
    protocol: str,
    output: str | Path,
    *,
    data: str | None = None,
    workers: int | None = None,
    time_limit: float | None = None,
    only: Sequence[str] | str = (),
    dry_run: bool = False,
    settings: Protocol | Overrides = None,
) -> Outcome:
    """Runs what is left of a protocol's cells in a folder; returns how far it came.

    `protocol` is a shipped one's name or the path of a YAML file. Cells whose files lie in
    `output`/cells are done, wherever they were made. `only` are names, or patterns, of cells and
    models. After `time_limit` seconds nothing is running any more, and a second call goes on.
    `dry_run` checks everything and prints what would be run.
    """
    _check_at_least_0("workers", workers, "processes that train side by side; 0: this one alone")
    _check_at_least_0("time_limit", time_limit, "seconds")
    chosen = Protocol.given(settings, {"data": data}, protocol)
    folder = Path(output)
    written = find_recipe(protocol, Protocol.verb)
    name = written.name
    deadline = None if time_limit is None else time.monotonic() + time_limit
    _check_folder(folder, name)
    plan = Plan(chosen, written.file, only_looked_at=dry_run)
    steps = plan.chosen([only] if isinstance(only, str) else only)
    schedule = Schedule(plan, steps, _place(plan, folder))
    if dry_run:
        result(_described(schedule))
        _check_present(plan, name)
        return _outcome(schedule)
    gpus = devices()
    count = max(1, _PER_GPU * len(gpus)) if workers is None else workers
    with only_writer(folder):
        write_protocol(folder, chosen, name)
        schedule.remove_models()
        if schedule.waiting:
            _run(schedule, min(count, len(schedule.waiting)), gpus, deadline)
        outcome = _outcome(schedule)
        identity = {"protocol": name, "settings": chosen.model_dump(mode="json")}
        results = {"done": outcome.done, "left": outcome.left, "failed": outcome.failed}
        write_snapshot(folder, Protocol.verb, identity, results)
    _report(outcome, deadline)
    return outcome


def _report(outcome: Outcome, deadline: float | None) -> None:
    """Writes the report of all cells so far; where time is up and cells are left, says how."""
    if deadline is not None and outcome.left:
        notice(f"a report of what is done: isthmus benchmark report {outcome.folder}")
    elif any((outcome.folder / CELLS).glob("*.json")):
        benchmark_report(outcome.folder)
        notice(f"report: {outcome.folder / REPORT / 'report.html'}")


def _check_at_least_0(name: str, value: float | None, of: str) -> None:
    if value is not None and not value >= 0:  # nor NaN
        raise SettingsError(
            f"--{name.replace('_', '-')} = {value} cannot be used",
            f"give 0 or more {of}, or leave it out",
        )


def _check_folder(folder: Path, name: str) -> None:
    """Refuses a folder that holds something else, or another benchmark."""
    with writing(folder):
        found = sorted(p.name for p in folder.iterdir()) if folder.is_dir() else []
    foreign = [entry for entry in found if entry not in _OURS and not entry.startswith(".")]
    if foreign or folder.is_file():
        raise OutputError(
            f"--output {str(folder)!r} holds something else: "
            f"{', '.join(foreign[:3]) or 'it is a file'}",
            "choose another --output: a new folder, or one of this benchmark",
        )
    if PROTOCOL in found and (other := read_protocol(folder)[0]) != name:
        raise OutputError(
            f"--output {str(folder)!r} holds the benchmark {other!r}, not {name!r}",
            "choose another --output",
        )


def _place(plan: Plan, folder: Path) -> Place:
    models = {step.name: step.folder for step in plan.steps.values() if step.cell is None}
    base = plan.protocol.base
    return Place(
        folder.absolute(),
        models,
        tuple(plan.protocol.spec(text) for text in base.texts),
        base.paragraph,
        plan.protocol.keep,
    )


def _run(schedule: Schedule, count: int, gpus: list[int], deadline: float | None) -> None:
    place = schedule.place
    workers = Workers(count, place, gpus) if count else Here(place)
    began: dict[str, float] = {}
    said, news = 0.0, True
    try:
        while True:
            left = None if deadline is None else deadline - time.monotonic()
            while workers.idle and (step := schedule.next(left)) is not None:
                began[step.name] = time.monotonic()
                workers.begin(step)
            if not workers.running:
                break
            if news or time.monotonic() - said > _SAY:
                said = time.monotonic()
                notice(_line(schedule, {n: said - t for n, t in began.items()}, count))
            if left is not None and left <= 0:
                notice(f"time is up: {len(workers.running)} steps that were running begin anew")
                break
            ended = workers.ended(_LOOK if left is None else max(0.0, min(_LOOK, left)))
            for one in ended:
                del began[one.step.name]
                _settle(schedule, one)
            news = bool(ended)
    finally:
        workers.stop()


def _settle(schedule: Schedule, ended: Ended) -> None:
    """Counts a step that has ended, well or not."""
    name = ended.step.name
    if ended.reason is None:
        schedule.finish(ended.step, ended.seconds)
    elif schedule.fail(ended.step, ended.reason):
        notice(f"{name} is tried once more: {ended.reason}")
    else:
        notice(f"{name} FAILED: {ended.reason}")


def _counts(schedule: Schedule) -> str:
    done, left, failed = schedule.counts()
    return f"cells: {done:,} done, {left:,} left, {failed:,} failed"


def _line(schedule: Schedule, running: dict[str, float], count: int) -> str:
    now = Counter(schedule.plan.steps[name].work for name in running)
    what = ", ".join(f"{number} {work}" for work, number in now.items())
    seconds = schedule.seconds_left(running, count)
    return f"{_counts(schedule)}; running: {what or 'nothing'}; about {_duration(seconds)} to go"


def _check_present(plan: Plan, name: str) -> None:
    """Refuses data and models that are not here, as the run would, but all of them at once."""
    if absent := list(dict.fromkeys(plan.absent)):
        raise InputError(
            f"{len(absent)} of the data and models of the protocol {name} are missing:\n    "
            + "\n    ".join(absent),
            "download them, or name the folder that holds the data: --data FOLDER",
        )


def _described(schedule: Schedule) -> str:
    """The steps that are left, a line each, and what they come to."""
    lines = []
    small = schedule.plan.protocol.scale == "small"  # what others take was never measured
    for step in schedule.waiting.values():
        about = f": about {_duration(schedule.expected(step))}" if small else ""
        lines.append(step.name + about + (f", after {', '.join(step.needs)}" if step.needs else ""))
    works = Counter(step.work for step in schedule.waiting.values())
    counted = ", ".join(f"{number:,} {work}" for work, number in works.items())
    tokens = sum(step.tokens for step in schedule.waiting.values() if step.work == "pretrain")
    done, left, _ = schedule.counts()
    said = f"{done:,} cells are done, {left:,} are left; steps: {counted or 'none'}"
    if small:
        said += f"; {tokens:,.0f} tokens of pre-training; about "
        said += f"{_duration(schedule.seconds_left({}, 1))} one after the other, on a large GPU"
    return "\n".join([*lines, said])


def _outcome(schedule: Schedule) -> Outcome:
    done, left, _ = schedule.counts()
    failed = {step.name for step in schedule.chosen} & schedule.failed.keys()
    reasons = {name: schedule.failed[name] for name in sorted(failed)}
    return Outcome(schedule.place.folder, done, left, reasons)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
