"""One thread that answers searches, all that wait at once: together they cost far less.

It never waits for a batch to fill: what came while one batch was answered is the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from threading import Thread
from time import perf_counter
from typing import Any

from isthmus.collections import Problems
from isthmus.records import Query, Ranking
from isthmus.retrieval.hybrid import Retriever
from isthmus.serving.measurements import Measurements
from isthmus.serving.refusals import busy
from isthmus.serving.stages import measured

Show = Callable[[Ranking], Any]
"""Makes what is shown of a ranking."""


@dataclass(frozen=True)
class Found:
    """What is shown of a search, and the seconds of its stages, the wait for it included."""

    shown: Any
    seconds: dict[str, float]


@dataclass
class _Job:
    retriever: Retriever
    query: str
    depth: int
    show: Show
    answer: asyncio.Future[Found]
    begun: float = field(default_factory=perf_counter)
    outcome: Found | Exception | None = None


class Batches:
    """Searches by one thread; those of one retriever and depth are answered together."""

    def __init__(self, name: str, together: int, waiting: int, measurements: Measurements) -> None:
        self._together = together
        self._most = waiting
        self._sizes, self._waiting = measurements.together, measurements.waiting.labels(name)
        self._queue: SimpleQueue[_Job | None] = SimpleQueue()
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    async def search(self, retriever: Retriever, query: str, depth: int, show: Show) -> Found:
        """What is shown of the answer to one query; refused while too many wait."""
        if self._queue.qsize() >= self._most:
            raise busy(f"{self._most:,} at a time")
        job = _Job(retriever, query, depth, show, asyncio.get_running_loop().create_future())
        self._queue.put(job)
        self._waiting.set(self._queue.qsize())
        return await job.answer

    def close(self) -> None:
        """Ends the thread, after what it has been given."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (first := self._queue.get()) is not None:
            batch, ended = [first], False
            while len(batch) < self._together and not ended:
                try:
                    job = self._queue.get_nowait()
                except Empty:
                    break
                ended = job is None
                if job is not None:
                    batch.append(job)
            self._waiting.set(self._queue.qsize())
            groups: dict[tuple[int, int], list[_Job]] = {}
            for job in batch:
                groups.setdefault((id(job.retriever), job.depth), []).append(job)
            for jobs in groups.values():
                self._answer(jobs)
            if ended:
                return

    def _answer(self, jobs: Sequence[_Job]) -> None:
        self._sizes.observe(len(jobs))
        start = perf_counter()
        try:
            with measured() as seconds:
                queries = [Query(str(number), job.query) for number, job in enumerate(jobs)]
                found = jobs[0].retriever.search(queries, jobs[0].depth, Problems("skip"))
            for job, ranking in zip(jobs, found, strict=True):
                before = perf_counter()
                shown = job.show(ranking)
                own = {"wait": start - job.begun, "snippets": perf_counter() - before}
                job.outcome = Found(shown, {**seconds, **own})
        except Exception as error:
            if len(jobs) > 1:  # the others are answered without the one that fails
                for job in jobs:
                    self._answer([job])
                return
            jobs[0].outcome = error
        by_loop: dict[asyncio.AbstractEventLoop, list[_Job]] = {}
        for job in jobs:
            by_loop.setdefault(job.answer.get_loop(), []).append(job)
        for loop, some in by_loop.items():
            with suppress(RuntimeError):  # it is closed: nothing waits for the answers
                loop.call_soon_threadsafe(_deliver, some)


def _deliver(jobs: list[_Job]) -> None:
    for job in jobs:
        if job.answer.done():  # the client went away
            continue
        if isinstance(job.outcome, Found):
            job.answer.set_result(job.outcome)
        else:
            assert job.outcome is not None
            job.answer.set_exception(job.outcome)
