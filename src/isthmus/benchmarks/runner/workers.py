"""Processes that do steps, one after the other: importing and warming up is paid once.

Each has a device of its own, shared with others where there are more processes than devices. They
end with the process that started them, whatever ended that.
"""

from __future__ import annotations

import multiprocessing
import os
import traceback
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from isthmus.benchmarks.protocol.plan import Step
from isthmus.benchmarks.runner.process import prepare
from isthmus.benchmarks.runner.steps import RunFolder, do_step
from isthmus.errors import IsthmusError

_THREADS = ("OMP_NUM_THREADS", "RAYON_NUM_THREADS", "NUMBA_NUM_THREADS", "MKL_NUM_THREADS")


class Workers:
    """A number of processes, each replaced when it fails or is lost."""

    def __init__(self, count: int, place: RunFolder) -> None:
        import torch

        self._place, self._gpus = place, torch.cuda.device_count()
        # A process that has touched CUDA cannot be forked, nor one whose libraries might have.
        self._context: Any = multiprocessing.get_context("spawn")
        self._stop = self._context.Event()
        cores = str(max(1, (os.cpu_count() or 1) // count))
        # Libraries read these when the processes import them.
        self._set = [name for name in _THREADS if name not in os.environ]
        os.environ.update(dict.fromkeys(self._set, cores))
        (place.folder / "logs").mkdir(exist_ok=True)
        self._free = {number: self._start(number) for number in range(count)}
        self._busy: dict[Future[str | None], tuple[Step, int, ProcessPoolExecutor]] = {}

    def _start(self, number: int) -> ProcessPoolExecutor:
        log = self._place.folder / "logs" / f"worker-{number}.log"
        gpu = number % self._gpus if self._gpus else None
        given = (os.getpid(), self._stop, log, gpu)
        return ProcessPoolExecutor(1, self._context, prepare, given)

    @property
    def free(self) -> bool:
        """Whether a process has nothing to do."""
        return bool(self._free)

    @property
    def busy(self) -> int:
        """How many steps are being done."""
        return len(self._busy)

    def begin(self, step: Step) -> None:
        """Gives a step to a process that has none."""
        number, process = self._free.popitem()
        try:
            future = process.submit(attempt, step, self._place)
        except BrokenProcessPool:  # lost while it was idle
            process = self._start(number)
            future = process.submit(attempt, step, self._place)
        self._busy[future] = step, number, process

    def ended(self, seconds: float | None) -> list[tuple[Step, str | None]]:
        """The steps that ended until now, each with the reason for which it failed, if it did.

        Waits for one, but no longer than this.
        """
        found = []
        for future in wait(self._busy, seconds, FIRST_COMPLETED).done:
            step, number, process = self._busy.pop(future)
            try:
                reason = future.result()
            except BrokenProcessPool:
                reason = f"its process was lost; logs/worker-{number}.log may say why"
            if reason is not None:  # the state of a device after an error is not to be trusted
                process.shutdown(wait=False)
                process = self._start(number)
            self._free[number] = process
            found.append((step, reason))
        return found

    def stop(self) -> None:
        """Ends all processes, whatever they are doing."""
        self._stop.set()
        for name in self._set:
            os.environ.pop(name, None)
        for process in [*self._free.values(), *(one[2] for one in self._busy.values())]:
            process.shutdown()


def attempt(step: Step, place: RunFolder) -> str | None:
    """Does a step; returns the reason for which it failed, if it did."""
    os.write(2, f"--- {step.name}\n".encode())
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
