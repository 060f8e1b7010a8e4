"""The cells of a benchmark as scores: by start and column, by seed and query."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from isthmus.benchmarks.protocol.cells import CellResult
from isthmus.benchmarks.protocol.settings import Protocol
from isthmus.errors import MismatchError

_ROUNDING = 1e-20  # a variance of means that are all the same, as floats have them


@dataclass(frozen=True)
class Column:
    """One column of a table: a measure on a collection, after a task, of an encoder kind."""

    kind: str
    task: str
    collection: str
    measure: str


Pattern = tuple[tuple[Column, float], ...]
"""Columns with the weights that a comparison gives them."""


@dataclass(frozen=True, eq=False)
class Scores:
    """One start in one column: a row per pre-training seed, averaged over its fine-tuning seeds."""

    queries: tuple[str, ...]
    seeds: tuple[int, ...]
    values: NDArray[np.float64]
    runs: int
    """How many cells these are the scores of."""

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


@dataclass(frozen=True)
class SeedVariance:
    """The variance of starts' means over queries, or of sums of such, from seed to seed."""

    pooled: float
    """The mean over all starts, by their degrees of freedom: three seeds of one say little."""
    shared: float
    """The part of it that comes from noise of single queries: smaller with more of them."""
    freedom: int


class Outcomes:
    """Every cell that was run, by what a table asks for."""

    def __init__(self, protocol: Protocol, cells: Iterable[CellResult]) -> None:
        self.protocol = protocol
        self.starts = tuple(protocol.starts)
        self._planned = {cell.name for cell in protocol.cells()}
        self.others = 0
        """Cells of other starts, kinds, tasks or seeds than the protocol has now: left out."""
        self._read: dict[tuple[str, Column], Scores | None] = {}
        self._variances: dict[Pattern, SeedVariance | None] = {}
        self._runs: dict[tuple[str, Column], list[_Run]] = defaultdict(list)
        self._by_place: dict[tuple[str, str, str], list[CellResult]] = defaultdict(list)
        self._orders: dict[str, tuple[str, ...]] = {}
        self.cells = tuple(self._keep(result) for result in cells if self._belongs(result))
        """Every cell, without the scores of its queries."""

    def _belongs(self, result: CellResult) -> bool:
        belongs = result.cell.name in self._planned
        self.others += not belongs
        return belongs

    def _keep(self, result: CellResult) -> CellResult:
        """Takes the scores over as arrays: as texts of ids they need a hundred times the memory."""
        cell = result.cell
        for collection, test in result.tests.items():
            for measure, scores in test.per_query.items():
                order = tuple(sorted(scores))
                if self._orders.setdefault(collection, order) == order:
                    order = self._orders[collection]
                values = np.fromiter(map(scores.__getitem__, order), float, len(scores))
                column = Column(cell.kind, cell.task, collection, measure)
                self._runs[cell.start, column].append(_Run(cell.pretraining_seed, order, values))
        tests = {
            name: test.model_copy(update={"per_query": {}}) for name, test in result.tests.items()
        }
        light = result.model_copy(update={"tests": tests})
        self._by_place[cell.start, cell.kind, cell.task].append(light)
        return light

    def at(self, start: str, kind: str, task: str) -> Sequence[CellResult]:
        """The cells of one start, kind and task, whatever became of them."""
        return self._by_place.get((start, kind, task), ())

    def values(
        self, start: str, kind: str, task: str, read: Callable[[CellResult], float | None]
    ) -> list[float]:
        """What is read from every finished cell of one start, kind and task, where it is known."""
        finished = (one for one in self.at(start, kind, task) if one.status == "done")
        return [value for one in finished if (value := read(one)) is not None]

    def pretraining_seconds(self, start: str, task: str) -> list[float]:
        """What each pre-training of a start on the collection of a task took: it counts once."""
        collection = self.protocol.tasks[task].collection
        known = {
            (result.cell.pretraining_seed, result.cost.pretraining_seconds)
            for result in self.cells
            if result.cell.start == start and result.status == "done"
            and self.protocol.tasks[result.cell.task].collection == collection
        }  # fmt: skip
        return sorted(seconds for _, seconds in known if seconds is not None)

    @cached_property
    def failed(self) -> tuple[CellResult, ...]:
        """The cells that failed."""
        return tuple(result for result in self.cells if result.status == "failed")

    def scores(self, start: str, column: Column) -> Scores | None:
        """The scores of a start in a column; None where no cell of it is done."""
        key = start, column
        if key not in self._read:
            self._read[key] = self._averaged(start, column)
        return self._read[key]

    def by_start(self, column: Column) -> dict[str, Scores]:
        """The scores in a column of every start that has any."""
        found = ((start, self.scores(start, column)) for start in self.starts)
        return {start: scores for start, scores in found if scores is not None}

    def seeds(self, column: Column) -> int:
        """The most pre-training seeds that a start has in a column; 0 where no cell is done."""
        return max((len(one.seeds) for one in self.by_start(column).values()), default=0)

    def columns(self, kind: str, measure: str, finetuned: bool = True) -> list[Column]:
        """A column per task that is run for a kind: its own collection; tasks of one side by side.

        Without `finetuned`, those of tasks that test a start as it is.
        """
        found = [
            Column(kind, name, task.collection, measure)
            for name, task in self.protocol.tasks.items()
            if kind in self.protocol.kinds_of(name) and task.finetune == finetuned
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

    def planned_runs(self, task: str) -> int:
        """How many cells the protocol has for a start and kind in a task: one per pair of seeds."""
        return len(self.protocol.seeds_of(task))

    def planned_cells(self) -> int:
        """How many cells the protocol has in all."""
        return len(self._planned)

    def whole(self, start: str, column: Column) -> bool:
        """Whether all planned runs of a start in a column are done."""
        scores = self.scores(start, column)
        return scores is not None and scores.runs == self.planned_runs(column.task)

    def seed_variance(self, pattern: Pattern) -> SeedVariance | None:
        """How far weighted sums of starts' means move from seed to seed; None if unknown.

        Columns are summed seed by seed: one pre-training serves several tasks, so that they move
        together.
        """
        if pattern not in self._variances:
            self._variances[pattern] = self._pool(pattern)
        return self._variances[pattern]

    def _pool(self, pattern: Pattern) -> SeedVariance | None:
        total, shared, freedom = 0.0, 0.0, 0
        for start in self.starts:
            found = [(weight, self.scores(start, column)) for column, weight in pattern]
            known = [(weight, scores) for weight, scores in found if scores is not None]
            seeds = set.intersection(*({*scores.seeds} for _, scores in known)) if known else set()
            if len(known) < len(pattern) or len(seeds) < 2:
                continue
            sums: dict[tuple[str, ...], NDArray[np.float64]] = {}
            for weight, scores in known:
                rows = [place for place, seed in enumerate(scores.seeds) if seed in seeds]
                here = weight * scores.values[rows]
                sums[scores.queries] = here + sums.get(scores.queries, 0.0)
            squares = float(np.var(sum(one.mean(axis=1) for one in sums.values()), ddof=1))
            # A checkpoint that nothing trains is the same from seed to seed.
            if squares > _ROUNDING:
                total += squares * (len(seeds) - 1)
                shared += sum(map(_noise_of_queries, sums.values()))
                freedom += len(seeds) - 1
        return SeedVariance(total / freedom, shared / freedom, freedom) if freedom else None

    def _averaged(self, start: str, column: Column) -> Scores | None:
        runs = self._runs.get((start, column))
        if not runs:
            return None
        queries = runs[0].queries
        of_seed: dict[int, list[NDArray[np.float64]]] = defaultdict(list)
        for run in runs:
            if run.queries != queries:
                raise other_queries(f"runs of {start!r}", column)
            of_seed[run.seed].append(run.values)
        seeds = tuple(sorted(of_seed))
        rows = [np.mean(of_seed[seed], axis=0) for seed in seeds]
        return Scores(queries, seeds, np.array(rows), len(runs))


@dataclass(frozen=True, eq=False)
class _Run:
    """The scores of one cell: by query, in the order of their ids."""

    seed: int
    queries: tuple[str, ...]
    values: NDArray[np.float64]


def other_queries(who: str, column: Column) -> MismatchError:
    """The refusal of cells that were scored on other queries than those beside them."""
    return MismatchError(
        f"{who} were scored on different queries of {column.collection!r} "
        f"({column.kind}, {column.task})",
        "repeat the runs that were made with another collection",
    )


def _noise_of_queries(values: NDArray[np.float64]) -> float:
    """The part of the squared deviations of the rows' means that single entries account for."""
    queries = len(values[0])
    rest = values - values.mean(axis=1, keepdims=True) - values.mean(axis=0) + values.mean()
    return float((rest**2).sum()) / max(queries - 1, 1) / queries
