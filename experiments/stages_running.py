"""Jobs that need each other, several at a time, each in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isthmus.config.output import write_json

AGAIN = 1  # times that a failed job is tried again, in a new process
_USUAL = {
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",  # jobs share the memory of a GPU
}


@dataclass(frozen=True)
class Job:
    """A verb with its arguments, to be done after other jobs; `rows` are measured at its end."""

    name: str
    verb: str
    arguments: dict[str, Any]
    needs: tuple[str, ...] = ()
    seconds: float = 10.0  # about, alone on an H200: long chains go first
    rows: tuple[Any, ...] = ()
    last: bool = False  # begun only when no other job could be

    def file(self, folder: Path, ending: str) -> Path:
        """Where something about this job is kept."""
        return folder / f"{self.name.replace('/', '-')}.{ending}"

    def described(self) -> dict[str, Any]:
        """What must be the same for a finished job to be this one."""
        described = {"verb": self.verb, "arguments": self.arguments}
        plain: dict[str, Any] = json.loads(json.dumps(described))
        return plain


def ahead(jobs: dict[str, Job]) -> dict[str, float]:
    """The seconds from the beginning of each job to the end of all that waits for it.

    Jobs stand after those they need.
    """
    seconds = {name: job.seconds for name, job in jobs.items()}
    for name in reversed(jobs):
        for needed in jobs[name].needs:
            seconds[needed] = max(seconds[needed], jobs[needed].seconds + seconds[name])
    return seconds


def in_order(jobs: dict[str, Job]) -> list[Job]:
    """Which job goes first, of those that could begin."""
    seconds = ahead(jobs)
    return sorted(jobs.values(), key=lambda job: (job.last, -seconds[job.name]))


class Runner:
    """Runs jobs as processes that `words` spell; `output` keeps their logs and what is done."""

    def __init__(
        self, jobs: dict[str, Job], output: Path, words: Callable[[Job], list[str]]
    ) -> None:
        self.order = in_order(jobs)
        self.words = words
        self.logs, self.marks, self.cache = (output / of for of in ("logs", "jobs", "cache"))
        for folder in (self.logs, self.marks):
            folder.mkdir(parents=True, exist_ok=True)
        self.done = {job.name for job in self.order if self._is_done(job)}
        self.running: dict[str, tuple[subprocess.Popen[bytes], float]] = {}

    def run(self, processes: int) -> int:
        """Does all that is not done yet; returns the exit status."""
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        began = time.monotonic()
        waiting = [job for job in self.order if job.name not in self.done]
        tries = {job.name: 0 for job in waiting}
        failed: list[Job] = []
        print(f"{len(self.done)} jobs are done, {len(waiting)} are left", flush=True)
        try:
            while waiting or self.running:
                for job in [job for job in waiting if self.done.issuperset(job.needs)]:
                    if len(self.running) < processes:
                        waiting.remove(job)
                        self._start(job)
                if not self.running:
                    break
                time.sleep(0.2)
                for job, status, seconds in self._ended():
                    told = "done"
                    if status == 0:
                        self.done.add(job.name)
                        described = {**job.described(), "seconds": seconds}
                        write_json(job.file(self.marks, "json"), described)
                    elif tries[job.name] < AGAIN:
                        tries[job.name] += 1
                        waiting.append(job)  # behind all others: it may have lacked memory
                        told = f"failed with {status}, once more"
                    else:
                        failed.append(job)
                        told = f"FAILED with {status}: {job.file(self.logs, 'log')}"
                    now = f"{time.monotonic() - began:5.0f} s"
                    left = f"{len(waiting)} waiting, {len(self.running)} running"
                    print(f"{now}  {job.name}: {told}, {seconds:.0f} s ({left})", flush=True)
        finally:
            for process, _ in self.running.values():
                process.terminate()
            for process, _ in self.running.values():
                process.wait()
        for job in failed:
            print(f"failed twice: {job.name}; see {job.file(self.logs, 'log')}")
        for job in waiting:
            print(f"not begun: {job.name}, for what it needs is not there")
        return 1 if failed or waiting else 0

    def _start(self, job: Job) -> None:
        environment = {**_USUAL, "ISTHMUS_CACHE": str(self.cache), **os.environ}
        with job.file(self.logs, "log").open("ab") as log:
            process = subprocess.Popen(  # noqa: S603 (our own words)
                self.words(job), stdout=log, stderr=subprocess.STDOUT, env=environment
            )
        self.running[job.name] = (process, time.monotonic())

    def _ended(self) -> list[tuple[Job, int, float]]:
        """The jobs that have come to an end since the last time, how, and after how long."""
        ended = []
        for job in self.order:
            process, began = self.running.get(job.name, (None, 0.0))
            if process is not None and process.poll() is not None:
                del self.running[job.name]
                ended.append((job, process.returncode, time.monotonic() - began))
        return ended

    def _is_done(self, job: Job) -> bool:
        file = job.file(self.marks, "json")
        if not file.is_file():
            return False
        kept = json.loads(file.read_text(encoding="utf-8"))
        return bool({key: kept[key] for key in job.described()} == job.described())
