"""Progress bars with rate and time left, the same for every long job.

On a terminal a live bar; elsewhere (a log file, CI) one line every half minute, so that a log
stays readable and shows that the job still runs.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import ClassVar, Self, TypeVar

from rich.console import Console, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from isthmus.errors import visible

T = TypeVar("T")
_QUIET_SECONDS = 30.0
_PATIENCE = 1.0  # seconds of silence

_said: set[str] | None = None  # within `said_once`
tracebacks = False
"""Whether errors of the input are shown with the lines of code that they passed."""
as_json = False
"""Whether results are printed as JSON; what a command says while it runs is one of them."""

console = Console(stderr=True)
"""Where progress and notices go; results go to standard output."""


def set_voice(quiet: bool, verbose: bool) -> None:
    """Silences progress and notices, or lets them come at once, and errors with tracebacks."""
    global _PATIENCE, _QUIET_SECONDS, tracebacks
    console.quiet = quiet
    if verbose:
        _PATIENCE, _QUIET_SECONDS, tracebacks = 0.0, 2.0, True


def off() -> None:
    """Prints no progress and no notices any more, until `on`."""
    console.quiet = True


def on() -> None:
    """Prints progress and notices again."""
    console.quiet = False


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text(f"{speed:,.1f} {task.fields['unit']}/s" if speed else "")


class Bar:
    """One job's progress: a description, a count towards a total, and a note that may change.

    `done` was so much before the job was interrupted: it counts, but not as if it were done now.
    A bar inside another one takes its place; the time of the inner one does not count for the
    outer one, and it has no last line where it was short.
    """

    _open: ClassVar[list[Bar]] = []

    def __init__(
        self, description: str, total: int | None = None, unit: str = "it", done: int = 0
    ) -> None:
        self.description = description
        self.total = total
        self.unit = unit
        self.done = self.before = done
        self.note = ""
        self._start = self._last = time.monotonic()
        self._said = False
        self._progress: Progress | None = None
        self._silent = os.environ.get("RANK", "0") != "0"

    def __enter__(self) -> Self:
        self._start = self._last = time.monotonic()
        self._outer = self._open[-1] if self._open else None
        if self._outer is not None:
            self._outer._pause()
        self._open.append(self)
        if console.is_terminal and not self._silent:
            self._progress = Progress(
                SpinnerColumn(), TextColumn("{task.description}"), BarColumn(),
                MofNCompleteColumn(), _Rate(), TimeElapsedColumn(), TimeRemainingColumn(),
                TextColumn("{task.fields[note]}"), console=console,
                transient=self._outer is not None,
            )  # fmt: skip
            self._progress.start()
            self._task = self._progress.add_task(self.description, unit=self.unit, note="")
            self._show()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()
        elif kind is None and (self._outer is None or self._said):
            self._line("done")
        if self in self._open:
            self._open.remove(self)
            if self._outer is not None:
                self._outer._go_on(time.monotonic() - self._start)

    def _pause(self) -> None:
        if self._progress is not None:
            self._progress.stop()

    def _go_on(self, seconds: float) -> None:
        self._start += seconds
        self._last += seconds
        if self._progress is not None:
            self._progress.start()

    def advance(self, amount: int = 1, note: str | None = None) -> None:
        """Counts `amount` more; the note (a loss, say) replaces the last one."""
        self.done += amount
        if note is not None:
            self.note = note
        if self._progress is not None:
            self._show()
        elif time.monotonic() - self._last > _QUIET_SECONDS:
            self._line("")

    def _show(self) -> None:
        assert self._progress is not None
        self._progress.update(self._task, total=self.total, completed=self.done, note=self.note)

    def _line(self, suffix: str) -> None:
        if self._silent:
            return
        self._last, self._said = time.monotonic(), True
        console.print(self._text(suffix), highlight=False, markup=False, soft_wrap=True)

    def _text(self, suffix: str) -> str:
        seconds = max(time.monotonic() - self._start, 1e-9)
        of = f"/{self.total:,}" if self.total is not None else ""
        speed = (self.done - self.before) / seconds
        rate = f"{speed:,.1f}" if speed >= 0.1 or not speed else f"{speed:.2g}"
        parts = [
            f"{self.done:,}{of}",
            f"{rate} {self.unit}/s",
            f"{seconds:,.0f} s",
            self.note,
            suffix,
        ]
        return f"{self.description}: {', '.join(part for part in parts if part)}"


def track(
    items: Iterable[T], description: str, total: int | None = None, unit: str = "it"
) -> Iterator[T]:
    """The items, counted by a bar as they pass."""
    with Bar(description, total, unit) as bar:
        for item in items:
            yield item
            bar.advance()


def result(message: RenderableType) -> None:
    """Prints a result on standard output, once per launch."""
    message = visible(message) if isinstance(message, str) else message
    if os.environ.get("RANK", "0") == "0":
        Console(soft_wrap=True).print(message, highlight=False, markup=False)


def notice(message: str) -> None:
    """Prints a remark on standard error, once per launch."""
    if _said is not None:
        if message in _said:
            return
        _said.add(message)
    if os.environ.get("RANK", "0") == "0":
        console.print(visible(message), highlight=False, markup=False, soft_wrap=True)


@contextmanager
def said_once() -> Iterator[None]:
    """Leaves out notices that were printed within the block before, word for word."""
    global _said
    outer, _said = _said, _said if _said is not None else set()
    try:
        yield
    finally:
        _said = outer


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Prints what is being done, if the block takes longer than a second."""
    timer = threading.Timer(_PATIENCE, notice, [f"{what} …"])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
