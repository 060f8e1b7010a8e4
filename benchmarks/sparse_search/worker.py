"""A system in a process of its own, and the pipe to it."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import resource
import signal
import time
import traceback
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self

import numpy as np
from benchmarks.sparse_search.system import System


class FailedError(Exception):
    """A system that failed or took too long; the others go on."""


class Worker:
    """Calls the methods of `Serving` in another process; a context manager that ends it."""

    def __init__(self, name: str, patience: float, *places: object) -> None:
        context = multiprocessing.get_context("spawn")
        self._patience = patience
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, name, places), daemon=True)
        self._process.start()
        theirs.close()

    def call(self, method: str, *arguments: object) -> Any:
        """What the method gives; FailedError where it gives nothing."""
        try:
            self._pipe.send((method, arguments))
            if not self._pipe.poll(self._patience):
                raise FailedError(f"{method}: gave up after {self._patience:.0f} s")
            done, answer = self._pipe.recv()
        except (EOFError, OSError):
            self._process.join(10)
            code = self._process.exitcode
            raise FailedError(f"{method}: the process ended with {code}") from None
        if not done:
            raise FailedError(f"{method}: {answer}")
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the process and whatever it has started."""
        if self._process.is_alive() and self._process.pid is not None:
            try:
                os.killpg(self._process.pid, signal.SIGKILL)
            except ProcessLookupError:  # it has not made its group yet
                self._process.kill()
        self._process.join()


class Serving:
    """What a process does for the one that started it."""

    def __init__(self, system: System) -> None:
        self._system = system
        self._bare = _memory()

    def about(self) -> bool:
        """Whether queries can be asked one at a time."""
        return self._system.one_at_a_time

    def build(self) -> dict[str, float]:
        """Seconds and bytes."""
        self._system.prepare()
        start = time.perf_counter()
        self._system.build()
        seconds = time.perf_counter() - start
        whole, scoring = self._system.bytes()
        postings = self._system.documents.nnz
        return {
            "build_seconds": seconds,
            "bytes": whole,
            "bytes_per_posting": scoring / postings,
        }

    def open(self) -> float:
        """Seconds."""
        start = time.perf_counter()
        self._system.open()
        return time.perf_counter() - start

    def ask(self, numbers: Sequence[int], depth: int) -> Any:
        """Seconds and rows, per query."""
        seconds, rows = [], []
        for number in numbers:
            start = time.perf_counter()
            found = self._system.search(number, depth)
            seconds.append(time.perf_counter() - start)
            rows.append(self._system.rows(found))
        return seconds, rows

    def ask_all(self, depth: int, threads: int) -> tuple[float, list[np.ndarray]]:
        """Queries per second, and rows per query."""
        rate, found = self._system.search_all(depth, threads)
        return rate, [self._system.rows(answer) for answer in found]

    def memory(self) -> dict[str, float | None]:
        """Bytes that opening and searching have added."""
        if not self._system.one_at_a_time:  # it has processes of its own
            most = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
            return {"resident": most, "anonymous": None}
        now = _memory()
        return {
            "resident": now["VmRSS"] - self._bare["VmRSS"],
            "anonymous": now["RssAnon"] - self._bare["RssAnon"],
        }


def _memory() -> dict[str, int]:
    lines = Path("/proc/self/status").read_text().splitlines()
    pairs = (line.split()[:2] for line in lines if line.startswith(("VmRSS", "RssAnon")))
    return {name.rstrip(":"): int(size) * 1024 for name, size in pairs}


def _serve(pipe: Connection, name: str, places: tuple[Any, ...]) -> None:
    os.setsid()  # so that whatever it starts ends with it
    nowhere = os.open(os.devnull, os.O_WRONLY)  # some talk a lot, past sys.stdout
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    serving = None
    while True:
        try:
            method, arguments = pipe.recv()
        except EOFError:
            return
        try:
            if serving is None:
                module = importlib.import_module(f"benchmarks.sparse_search.systems.{name}")
                serving = Serving(module.Measured(*places))
            pipe.send((True, getattr(serving, method)(*arguments)))
        except BaseException:  # a panic of Rust is no Exception
            pipe.send((False, traceback.format_exc().strip().splitlines()[-1]))
