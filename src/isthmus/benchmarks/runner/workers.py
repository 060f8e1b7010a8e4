"""Processes that do steps, one after the other: importing and warming up is paid once.

Each has a device of its own, shared with others where there are more processes than devices. They
end with the process that started them, whatever ended that.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from isthmus.benchmarks.protocol.plan import Step
from isthmus.benchmarks.runner.steps import RunFolder, do_step
from isthmus.errors import IsthmusError

_STOPPING = 5.0  # seconds that a process has to end by itself
_LOOK = 1.0  # seconds between two looks at whether its starter is there
_THREADS = ("OMP_NUM_THREADS", "RAYON_NUM_THREADS", "NUMBA_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True)
class Ended:
    """A step that came to its end: after how many seconds, or for which reason it failed."""

    step: Step
    seconds: float
    reason: str | None = None


class Workers:
    """A number of processes, each replaced when it fails or is lost."""

    def __init__(self, count: int, place: RunFolder) -> None:
        import torch

        self._place, self._gpus = place, torch.cuda.device_count()
        cores = str(max(1, (os.cpu_count() or 1) // count))
        # Libraries read these when the processes import them.
        self._set = [name for name in _THREADS if name not in os.environ]
        os.environ.update(dict.fromkeys(self._set, cores))
        self._workers = [_Worker(number, self._gpus, place) for number in range(count)]

    @property
    def running(self) -> list[Step]:
        """The steps that are being done."""
        return [worker.step for worker in self._workers if worker.step is not None]

    @property
    def free(self) -> bool:
        """Whether a process has nothing to do."""
        return len(self.running) < len(self._workers)

    def begin(self, step: Step) -> None:
        """Gives a step to a process that has none."""
        next(worker for worker in self._workers if worker.step is None).begin(step)

    def ended(self, seconds: float) -> list[Ended]:
        """The steps that ended until now; waits for one, but no longer than this."""
        ready = wait([worker.connection for worker in self._workers], seconds)
        found = []
        for number, worker in enumerate(self._workers):
            if worker.connection in ready:
                ended = worker.take()
                if ended is None or ended.reason is not None:  # its device is not to be trusted
                    worker.stop()
                    self._workers[number] = _Worker(number, self._gpus, self._place)
                found += [ended] if ended is not None else []
        return found

    def stop(self) -> None:
        """Ends all processes, whatever they are doing."""
        for name in self._set:
            os.environ.pop(name, None)
        for worker in self._workers:
            worker.process.terminate()
        for worker in self._workers:
            worker.stop()


class _Worker:
    """One process, as the one that started it sees it."""

    def __init__(self, number: int, gpus: int, place: RunFolder) -> None:
        # A process that has touched CUDA cannot be forked, nor one whose libraries might have.
        context: Any = multiprocessing.get_context("spawn")
        self.step: Step | None = None
        self._began = 0.0
        log = place.folder / "logs" / f"worker-{number}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        gpu = number % gpus if gpus else None
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, os.getpid(), place, log, gpu))
        self.process.start()
        theirs.close()

    def begin(self, step: Step) -> None:
        self.step, self._began = step, time.monotonic()
        with suppress(OSError):  # lost while it was idle: `take` finds out
            self.connection.send(step)

    def take(self) -> Ended | None:
        """What came of its step; None if it was lost without one."""
        step, self.step = self.step, None
        try:
            reason = self.connection.recv()
        except (EOFError, OSError):
            reason = self._end()
        return None if step is None else Ended(step, time.monotonic() - self._began, reason)

    def _end(self) -> str:
        self.process.join(_STOPPING)
        code = self.process.exitcode
        if code is not None and code < 0:
            return f"its process was ended by {signal.Signals(-code).name}"
        return f"its process ended with status {code}"

    def stop(self) -> None:
        self.process.join(_STOPPING / 10)
        self.process.kill()
        self.process.join()
        self.connection.close()


def _serve(
    connection: Connection, starter: int, place: RunFolder, log: Path, gpu: int | None
) -> None:
    """Does steps as they come, until one fails, or the starter is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the terminal: the starter decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with, args=(starter,), daemon=True).start()
    with log.open("ab", buffering=0) as stream:
        for descriptor in (1, 2):
            os.dup2(stream.fileno(), descriptor)
    if gpu is not None:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        os.environ["CUDA_VISIBLE_DEVICES"] = visible.split(",")[gpu] if visible else str(gpu)
    with suppress(EOFError, OSError):
        while True:
            step = connection.recv()
            os.write(2, f"--- {step.name}\n".encode())
            reason = attempt(step, place)
            connection.send(reason)
            if reason is not None:
                return


def attempt(step: Step, place: RunFolder) -> str | None:
    """Does a step; returns the reason for which it failed, if it did."""
    try:
        do_step(step, place)
    except IsthmusError as error:
        traceback.print_exc()
        return error.what
    except Exception as error:
        traceback.print_exc()
        first = (str(error).strip().splitlines() or [""])[0]
        return f"{type(error).__name__}: {first}"
    return None


def _end_with(starter: int) -> None:
    while os.getppid() == starter:
        time.sleep(_LOOK)
    os._exit(1)
