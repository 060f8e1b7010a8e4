"""The cells of a benchmark as scores: by start and column, by seed and query."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from isthmus.benchmarks.protocol.cells import CellResult
from isthmus.benchmarks.protocol.settings import Protocol
from isthmus.errors import MismatchError


@dataclass(frozen=True)
class Column:
    """One column of a table: a measure on a collection, after a task, of an encoder kind."""

    kind: str
    task: str
    collection: str
    measure: str


@dataclass(frozen=True, eq=False)
class Scores:
    """One start in one column: a row per pre-training seed, averaged over its fine-tuning seeds.

    A start without pre-training has other fine-tuning seeds for each of them.
    """

    queries: tuple[str, ...]
    seeds: tuple[int, ...]
    values: NDArray[np.float64]
    runs: int

    @cached_property
    def mean(self) -> float:
        """The mean over seeds and queries."""
        return float(self.values.mean())

    @cached_property
    def spread(self) -> float:
        """The standard deviation of the mean from seed to seed; NaN of one seed."""
        if len(self.seeds) < 2:
            return math.nan
        return float(self.values.mean(axis=1).std(ddof=1))

    @cached_property
    def by_query(self) -> NDArray[np.float64]:
        """The score of every query, averaged over seeds."""
        averaged: NDArray[np.float64] = self.values.mean(axis=0)
        return averaged


@dataclass(frozen=True)
class SeedVariance:
    """The variance of a start's mean over queries from seed to seed."""

    total: float
    shared: float
    """The part of it that comes from noise of single queries: smaller with more of them."""
    freedom: int


class Outcomes:
    """Every cell that was run, by what a table asks for."""

    def __init__(self, protocol: Protocol, cells: Iterable[CellResult]) -> None:
        self.protocol = protocol
        self.starts = tuple(protocol.starts)
        self.cells = tuple(cells)
        self._scores: dict[tuple[str, Column], Scores | None] = {}
        self._variances: dict[Column, SeedVariance | None] = {}
        self._by_place: dict[tuple[str, str, str], list[CellResult]] = defaultdict(list)
        for result in self.cells:
            cell = result.cell
            self._by_place[cell.start, cell.kind, cell.task].append(result)

    def at(self, start: str, kind: str, task: str) -> Sequence[CellResult]:
        """The cells of one start, kind and task, whatever became of them."""
        return self._by_place.get((start, kind, task), ())

    @cached_property
    def failed(self) -> tuple[CellResult, ...]:
        """The cells that were tried in vain."""
        return tuple(result for result in self.cells if result.status == "failed")

    def scores(self, start: str, column: Column) -> Scores | None:
        """The scores of a start in a column; None where no cell of it is done."""
        key = start, column
        if key not in self._scores:
            self._scores[key] = self._read(start, column)
        return self._scores[key]

    def columns(self, kind: str, measure: str, finetuned: bool = True) -> list[Column]:
        """A column per task that is run for a kind: its own collection; tasks of one side by side.

        Without `finetuned`, those of tasks that test a start as it is.
        """
        found = [
            Column(kind, name, task.collection, measure)
            for name, task in self.protocol.tasks.items()
            if kind in (task.kinds or self.protocol.kinds) and task.finetune == finetuned
        ]
        order = list(dict.fromkeys(column.collection for column in found))
        return sorted(found, key=lambda column: order.index(column.collection))

    def zero_shot_columns(self, kind: str, task: str, measure: str) -> list[Column]:
        """A column per collection that a task's models are tested on, but not trained on."""
        return [
            Column(kind, task, collection, measure)
            for collection in self.protocol.zero_shot
            if collection != self.protocol.tasks[task].collection
        ]

    def planned(self, start: str, task: str) -> bool:
        """Whether the protocol runs a start for a task at all."""
        return start in (self.protocol.tasks[task].starts or self.starts)

    def runs(self, task: str) -> int:
        """How many cells the protocol has for one start and kind of a task: one per seeds."""
        seeds = self.protocol.seeds
        tuned = self.protocol.tasks[task].finetune
        return len(seeds.pretraining) * (len(seeds.finetuning) if tuned else 1)

    def planned_cells(self) -> int:
        """How many cells the protocol has in all."""
        return sum(
            self.runs(name)
            * len(task.kinds or self.protocol.kinds)
            * len(task.starts or self.starts)
            for name, task in self.protocol.tasks.items()
        )

    def seed_variance(self, column: Column) -> SeedVariance | None:
        """How far the mean of a start moves from seed to seed; None where none has two seeds.

        Pooled over all starts of the column: three seeds of one start alone say little.
        """
        if column not in self._variances:
            self._variances[column] = self._pool(column)
        return self._variances[column]

    def _pool(self, column: Column) -> SeedVariance | None:
        total, shared, freedom = 0.0, 0.0, 0
        for start in self.starts:
            scores = self.scores(start, column)
            # A checkpoint that nothing trains is the same from seed to seed.
            if scores is not None and len(scores.seeds) > 1 and scores.spread > 0.0:
                values = scores.values
                rest = values - values.mean(axis=1, keepdims=True) - scores.by_query + scores.mean
                total += scores.spread**2 * (len(values) - 1)
                shared += float((rest**2).sum()) / max(len(scores.queries) - 1, 1) / len(rest[0])
                freedom += len(values) - 1
        return SeedVariance(total / freedom, shared / freedom, freedom) if freedom else None

    def _read(self, start: str, column: Column) -> Scores | None:
        of_seed: dict[int, list[dict[str, float]]] = defaultdict(list)
        for result in self.at(start, column.kind, column.task):
            test = result.tests.get(column.collection)
            if result.status != "done" or test is None or column.measure not in test.per_query:
                continue
            of_seed[result.cell.pretraining_seed].append(test.per_query[column.measure])
        if not of_seed:
            return None
        seeds = tuple(sorted(of_seed))
        queries = tuple(sorted(of_seed[seeds[0]][0]))
        rows = []
        for seed in seeds:
            for run in of_seed[seed]:
                _check_queries(start, column, queries, run)
            runs = [[run[query] for query in queries] for run in of_seed[seed]]
            rows.append(np.mean(np.array(runs, float), axis=0))
        return Scores(queries, seeds, np.array(rows), sum(map(len, of_seed.values())))


def _check_queries(
    start: str, column: Column, queries: Sequence[str], run: dict[str, float]
) -> None:
    if run.keys() != set(queries):
        different = sorted(run.keys() ^ set(queries))
        raise MismatchError(
            f"runs of {start!r} were scored on different queries of {column.collection!r}: "
            f"{len(different):,} are of one alone, {different[0]!r} for example",
            where=f"cells of {start!r}, {column.kind}, {column.task}",
            allowed="the same judged queries in every cell",
            remedy="run the cells again that were made with another collection",
        )
