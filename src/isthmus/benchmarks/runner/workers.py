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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from isthmus.benchmarks.protocol.plan import Step
from isthmus.benchmarks.runner.steps import Place, run_step
from isthmus.errors import IsthmusError

_STOPPING = 5.0  # seconds that a process has to end by itself
_LOOK = 1.0  # seconds between two looks at whether its starter is there


@dataclass(frozen=True)
class Ended:
    """A step that came to its end: after so many seconds, or for which reason it failed."""

    step: Step
    seconds: float
    reason: str | None = None


def devices() -> list[int]:
    """The numbers of the GPUs that are found."""
    import torch

    return list(range(torch.cuda.device_count()))


class Workers:
    """So many processes, each replaced when it is lost."""

    def __init__(self, count: int, place: Place, gpus: list[int]) -> None:
        self._place = place
        # A process that has touched CUDA cannot be forked, nor one whose libraries might have.
        self._context: Any = multiprocessing.get_context("spawn")
        self._gpus = gpus
        with _environment(_shares(count)):
            self._workers = [self._start(number) for number in range(count)]

    def _start(self, number: int) -> _Worker:
        gpu = self._gpus[number % len(self._gpus)] if self._gpus else None
        log = self._place.folder / "logs" / f"worker-{number}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        return _Worker(self._context, number, gpu, log, self._place)

    @property
    def idle(self) -> int:
        """How many have nothing to do."""
        return sum(worker.step is None for worker in self._workers)

    @property
    def running(self) -> list[Step]:
        """The steps that are being done."""
        return [worker.step for worker in self._workers if worker.step is not None]

    def begin(self, step: Step) -> None:
        """Gives a step to a process that has none."""
        worker = next(worker for worker in self._workers if worker.step is None)
        worker.begin(step)

    def ended(self, seconds: float) -> list[Ended]:
        """The steps that ended until now; waits for one, but no longer than this."""
        listened: dict[Any, _Worker] = {}
        for worker in self._workers:
            listened[worker.connection] = listened[worker.process.sentinel] = worker
        found = []
        for worker in {id(w): w for w in map(listened.get, wait(listened, seconds)) if w}.values():
            ended = worker.take()
            if not worker.usable:
                worker.stop()
                with _environment(_shares(len(self._workers))):
                    self._workers[worker.number] = self._start(worker.number)
            if ended is not None:
                found.append(ended)
        return found

    def stop(self) -> None:
        """Ends all processes, whatever they are doing."""
        for worker in self._workers:
            worker.process.terminate()
        for worker in self._workers:
            worker.stop()


class Here:
    """The process itself in the place of others: a step at a time, for tests and debuggers."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self.running: list[Step] = []

    @property
    def idle(self) -> int:
        """How many have nothing to do."""
        return 1 - len(self.running)

    def begin(self, step: Step) -> None:
        """Takes a step, to be done by `ended`."""
        self.running.append(step)

    def ended(self, seconds: float) -> list[Ended]:
        """The step that was begun, done by now."""
        return [attempt(self.running.pop(), self._place)]

    def stop(self) -> None:
        """Nothing is left running."""


class _Worker:
    """One process, as the one that started it sees it."""

    def __init__(self, context: Any, number: int, gpu: int | None, log: Path, place: Place) -> None:
        self.number = number
        self.step: Step | None = None
        self._began = 0.0
        self.usable = True
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, os.getpid(), place, log, gpu))
        self.process.start()
        theirs.close()

    def begin(self, step: Step) -> None:
        self.step, self._began = step, time.monotonic()
        with suppress(OSError):  # lost while it was idle: `take` finds out
            self.connection.send(step)

    def take(self) -> Ended | None:
        """What came of its step; a process that failed, or is gone, is not used again."""
        step, seconds = self.step, time.monotonic() - self._began
        try:
            reason = self.connection.recv() if self.connection.poll() else _how(self.process)
        except (EOFError, OSError):
            reason = _how(self.process)
        self.usable, self.step = reason is None, None
        return None if step is None else Ended(step, seconds, reason)

    def stop(self) -> None:
        self.process.join(0 if self.process.exitcode is not None else _STOPPING / 10)
        if self.process.is_alive():
            self.process.kill()
        self.process.join()
        self.connection.close()


def _how(process: Any) -> str:
    process.join(_STOPPING)
    code = process.exitcode
    if code is not None and code < 0:
        return f"its process was ended by {signal.Signals(-code).name}"
    return f"its process ended with status {code}"


def _serve(connection: Connection, starter: int, place: Place, log: Path, gpu: int | None) -> None:
    """Does steps as they come, until there are none, one fails, or the starter is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the terminal: the starter decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with, args=(starter,), daemon=True).start()
    with log.open("ab", buffering=0) as stream:
        for descriptor in (1, 2):
            os.dup2(stream.fileno(), descriptor)
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = _visible(gpu)
    with suppress(EOFError, OSError):
        while (step := connection.recv()) is not None:
            os.write(2, f"--- {step.name}\n".encode())
            reason = attempt(step, place).reason
            connection.send(reason)
            if reason is not None:  # the state of a device after an error is not to be trusted
                return


def attempt(step: Step, place: Place) -> Ended:
    """Does a step; returns how long it took, and the reason for which it failed, if it did."""
    began, reason = time.monotonic(), None
    try:
        run_step(step, place)
    except IsthmusError as error:
        traceback.print_exc()
        reason = error.what
    except Exception as error:
        traceback.print_exc()
        first = (str(error).strip().splitlines() or [""])[0]
        reason = f"{type(error).__name__}: {first}"
    return Ended(step, time.monotonic() - began, reason)


def _visible(gpu: int) -> str:
    """What CUDA_VISIBLE_DEVICES calls a GPU, of those that are visible here."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return visible.split(",")[gpu] if visible else str(gpu)


def _end_with(starter: int) -> None:
    while os.getppid() == starter:
        time.sleep(_LOOK)
    os._exit(1)


def _shares(count: int) -> dict[str, str]:
    """The part of the cores that each of so many processes takes, as libraries read it."""
    cores = str(max(1, (os.cpu_count() or 1) // count))
    names = ("OMP_NUM_THREADS", "RAYON_NUM_THREADS", "NUMBA_NUM_THREADS", "MKL_NUM_THREADS")
    return dict.fromkeys(names, cores)


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Sets variables that are not set, for processes that are started in the block."""
    new = {name: value for name, value in values.items() if name not in os.environ}
    os.environ.update(new)
    try:
        yield
    finally:
        for name in new:
            del os.environ[name]
