"""Children of a process that has everything imported: each does one thing, and may come to harm.

A step is whatever changes names or files below a folder: a file opened for writing, renamed,
removed, cut or brought to the disk, a folder made or removed. Before the n-th step of a child,
it can be killed, refused or held up.
"""

from __future__ import annotations

import atexit
import errno
import gc
import importlib
import mmap
import os
import pickle
import resource
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.end_to_end.forking import warm_up

_PRELOADED = (
    "isthmus.cli", "isthmus.pretraining.pretrain", "isthmus.finetuning.finetune",
    "isthmus.retrieval.index", "isthmus.retrieval.search", "isthmus.retrieval.change",
    "isthmus.retrieval.tune", "isthmus.retrieval.export", "isthmus.indexes.bm25.field",
    "isthmus.indexes.dense.builder", "isthmus.indexes.sparse.builder",
    "isthmus.indexes.sparse.field", "isthmus.indexes.filters", "isthmus.evaluation",
    "isthmus.encoders", "isthmus.config.recipes", "scipy.stats",
    "transformers.models.bert.modeling_bert", "transformers.models.auto.tokenization_auto",
)  # fmt: skip
_CHANGES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.link")
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


def preload() -> None:
    """Imports what children need, once."""
    os.environ |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "COLUMNS": "200"}
    os.environ |= {"HF_HUB_OFFLINE": "1", "OMP_WAIT_POLICY": "passive"}
    for module in _PRELOADED:
        importlib.import_module(module)
    warm_up()
    importlib.import_module("isthmus.indexes.dense.builder").LEAST = 8  # of which a graph is made
    gc.collect()
    gc.freeze()


@dataclass(frozen=True)
class Ended:
    """How a child ended: exit code (negative: the signal), what it said, what it returned."""

    code: int
    out: str
    err: str
    value: Any
    steps: int

    @property
    def refused(self) -> bool:
        """Whether it ended in the project's own error: what is wrong, and what to do."""
        last = self.err[self.err.rfind("error: ") :]
        told = last.startswith("error: ") and "\n  fix: " in last
        return self.code == 2 and "Traceback" not in self.err and told

    @property
    def tail(self) -> str:
        """The end of what it said, for a finding."""
        return f"exit {self.code}: " + " | ".join(self.err.strip().splitlines()[-4:])[-600:]


@dataclass(frozen=True)
class Harm:
    """What happens before step `at`, or before it and every later one.

    `kind` is "kill", "pause", or the name of an error of the system, such as ENOSPC.
    """

    kind: str
    at: int
    later: bool = False


class Child:
    """A forked process that runs `work`, or the command line where `work` is a list of words."""

    def __init__(
        self,
        work: Callable[[], Any] | list[str],
        watched: Path,
        harm: Harm | None = None,
        limits: dict[int, int] | None = None,
        answers: bytes = b"",
    ) -> None:
        self._shared = mmap.mmap(-1, 16)  # steps done; whether it waits
        self._go, self._release = os.pipe()
        # Pipes, which no limit of files' sizes concerns.
        self._said = {number: (*os.pipe(), bytearray()) for number in (1, 2)}
        self._folder = watched.parent / f".child-{watched.name}-{os.getpid()}-{id(self)}"
        self._folder.mkdir(parents=True)
        self._ended: Ended | None = None
        self.pid = os.fork()
        if self.pid == 0:
            try:
                self._become(work, watched, harm, limits or {}, answers)
            finally:
                os._exit(70)  # must not go on as a second parent
        for reading, writing, _ in self._said.values():
            os.close(writing)
            os.set_blocking(reading, False)

    @property
    def steps(self) -> int:
        """How many steps it has come to."""
        return int.from_bytes(self._shared[:8], "little")

    @property
    def paused(self) -> bool:
        """Whether it has come to the step where it waits."""
        return self._shared[8] == 1

    def wait(self, seconds: float = 120.0) -> Ended | None:
        """How it ended, None where it is still running after so many seconds."""
        until = time.monotonic() + seconds
        while self._ended is None:
            self._listen()
            done, status = os.waitpid(self.pid, os.WNOHANG)
            if done:
                self._ended = self._collect(os.waitstatus_to_exitcode(status))
            elif time.monotonic() > until:
                return None
            else:
                time.sleep(0.003)
        return self._ended

    def wait_paused(self, seconds: float = 120.0) -> bool:
        """Whether it came to the step where it waits, before it ended."""
        until = time.monotonic() + seconds
        while not self.paused and self.wait(0) is None and time.monotonic() < until:
            time.sleep(0.002)
        return self.paused

    def go_on(self) -> None:
        """Ends its pause, if it has not ended itself."""
        if self._ended is None:
            os.write(self._release, b"x")

    def kill(self) -> Ended:
        """Kills it with all its workers; how it ended."""
        if self._ended is None:
            os.kill(self.pid, signal.SIGKILL)
        ended = self.wait()
        assert ended is not None
        return ended

    def end(self, seconds: float = 120.0) -> Ended:
        """How it ended; one that does not come to its end is killed and says so."""
        ended = self.wait(seconds)
        if ended is None:
            killed = self.kill()
            ended = Ended(-14, killed.out, f"{killed.err}\nhangs", None, killed.steps)
        return ended

    def _listen(self) -> None:
        for reading, _, heard in self._said.values():
            with suppress(BlockingIOError):
                while more := os.read(reading, 2**16):
                    heard += more

    def _collect(self, code: int) -> Ended:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)  # workers
        self._listen()
        for end in (self._go, self._release, *(reading for reading, _, _ in self._said.values())):
            os.close(end)
        out, err = (heard.decode(errors="replace") for _, _, heard in self._said.values())
        file = self._folder / "value"
        value = pickle.loads(file.read_bytes()) if file.exists() and code == 0 else None
        for file in self._folder.iterdir():
            file.unlink()
        self._folder.rmdir()
        return Ended(code, out, err, value, self.steps)

    def _become(
        self,
        work: Callable[[], Any] | list[str],
        watched: Path,
        harm: Harm | None,
        limits: dict[int, int],
        answers: bytes,
    ) -> None:
        atexit._clear()  # the parent's
        os.setsid()
        (self._folder / "0").write_bytes(answers)
        os.dup2(os.open(self._folder / "0", os.O_RDONLY), 0)
        for number, (_, writing, _) in self._said.items():
            os.dup2(writing, number)
        sys.stdin, sys.stdout = os.fdopen(0), os.fdopen(1, "w")
        sys.stderr = os.fdopen(2, "w", errors="backslashreplace")  # as Python opens it
        os.environ["ISTHMUS_CACHE"] = str(watched / "cache")
        for limit, value in limits.items():
            if limit == resource.RLIMIT_AS:  # beyond what lies here already
                value += int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE
            resource.setrlimit(limit, (value, value))
        self._watch(watched, harm)
        code = 0
        try:
            if isinstance(work, list):
                from isthmus.cli import main

                sys.argv = ["isthmus", *work]
                main()
            else:
                (self._folder / "value").write_bytes(pickle.dumps(work()))
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:
            traceback.print_exc()
            code = 1
        try:
            threading._shutdown()  # type: ignore[attr-defined]
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
        except BaseException:
            code = code or 1
        os._exit(code)

    def _watch(self, watched: Path, harm: Harm | None) -> None:
        inside, steps = str(watched), 0

        def step(path: object) -> None:
            nonlocal steps
            steps += 1
            self._shared[:8] = steps.to_bytes(8, "little")
            if harm is None or not (steps == harm.at or (harm.later and steps > harm.at)):
                return
            if harm.kind == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            elif harm.kind == "pause":
                self._shared[8] = 1
                os.read(self._go, 1)
            else:
                number = getattr(errno, harm.kind)
                raise OSError(number, os.strerror(number), str(path))

        def hook(event: str, arguments: tuple[Any, ...]) -> None:
            if event == "open":
                path, _, flags = arguments
                if not isinstance(flags, int) or not flags & _WRITES:
                    return
            elif event not in _CHANGES:
                return
            path = os.fsdecode(arguments[0]) if not isinstance(arguments[0], int) else ""
            # A name alone is one in a folder that is open: what rmtree removes.
            if path.startswith(inside) or (event != "open" and not path.startswith("/")):
                step(path)

        own = os.fsync

        def fsync(file: int) -> None:
            step(os.readlink(f"/proc/self/fd/{file}"))
            own(file)

        os.fsync = fsync
        sys.addaudithook(hook)
