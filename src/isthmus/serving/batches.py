"""Searches in one thread, those that wait at the same time together: they cost far less so.

It never waits for a batch to fill: what came while one batch was answered is the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from isthmus.collections import Problems
from isthmus.indexes.filters import Filter
from isthmus.records import Query, Ranking
from isthmus.retrieval.searcher import Retriever
from isthmus.serving.timing import measured

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
    k: int
    show: Show
    filter: Filter | None
    answer: asyncio.Future[Found]
    begun: float = field(default_factory=perf_counter)


class Batches:
    """Searches in one thread; those that differ in the query alone are answered together."""

    def __init__(self, name: str, together: int) -> None:
        self._together = together
        self._jobs: list[_Job] = []
        self._pool = ThreadPoolExecutor(1, name)
        self._running: asyncio.Task[None] | None = None

    async def search(
        self,
        retriever: Retriever,
        query: str,
        k: int,
        show: Show,
        filter: Filter | None = None,  # noqa: A002 (the word that users know)
    ) -> Found:
        """What is shown of the answer to one query."""
        job = _Job(retriever, query, k, show, filter, asyncio.get_running_loop().create_future())
        self._jobs.append(job)
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._run())
        return await job.answer

    def close(self) -> None:
        """Ends the thread, after what it has been given."""
        self._pool.shutdown()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while self._jobs:
            batch, self._jobs = self._jobs[: self._together], self._jobs[self._together :]
            groups: dict[tuple[int, int, Filter | None], list[_Job]] = {}
            for job in batch:
                groups.setdefault((id(job.retriever), job.k, job.filter), []).append(job)
            for jobs in groups.values():
                outcomes = await loop.run_in_executor(self._pool, _outcomes, jobs)
                for job, outcome in zip(jobs, outcomes, strict=True):
                    if job.answer.done():  # the client went away
                        continue
                    if isinstance(outcome, Found):
                        job.answer.set_result(outcome)
                    else:
                        job.answer.set_exception(outcome)


def _outcomes(jobs: Sequence[_Job]) -> list[Found | Exception]:
    start = perf_counter()
    try:
        with measured() as seconds:
            queries = [Query(str(number), job.query) for number, job in enumerate(jobs)]
            first = jobs[0]
            rankings = first.retriever.search(queries, first.k, Problems("skip"), first.filter)
        found: list[Found | Exception] = []
        for job, ranking in zip(jobs, rankings, strict=True):
            before = perf_counter()
            shown = job.show(ranking)
            own = {"wait": start - job.begun, "snippets": perf_counter() - before}
            found.append(Found(shown, {**seconds, **own}))
        return found
    except Exception as error:
        if len(jobs) == 1:
            return [error]
        return [_outcomes([job])[0] for job in jobs]  # the others do not fail with it
