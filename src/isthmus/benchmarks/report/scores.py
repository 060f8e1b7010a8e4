"""The runs of a benchmark as scores: by method and column, by seed and query."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from isthmus.benchmarks.protocol.runs import Result, Run
from isthmus.benchmarks.protocol.settings import Protocol
from isthmus.errors import MismatchError

_ROUNDING = 1e-20  # a variance of means that are all the same, as floats have them
Values = NDArray[np.float64]


@dataclass(frozen=True)
class Column:
    """One column of a table: a measure on a collection, after a task, of a type of retriever."""

    retriever: str
    task: str
    collection: str
    measure: str


Pattern = tuple[tuple[Column, float], ...]
"""Columns with the weights that a comparison gives them."""


@dataclass(frozen=True, eq=False)
class Scores:
    """A method in a column: a row per pre-training seed, averaged over its fine-tuning seeds."""

    queries: tuple[str, ...]
    seeds: tuple[int, ...]
    values: Values
    runs: int
    """How many runs these are the scores of."""

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


class SeedVariance(NamedTuple):
    """The variance of methods' means over queries, or of sums of such, from seed to seed."""

    pooled: float
    """The mean over all methods, by their degrees of freedom: three seeds of one say little."""
    shared: float
    """The part of it that comes from noise of single queries: smaller with more of them."""
    freedom: int


class Grid:
    """Every run that is done, by what a table asks for."""

    def __init__(self, protocol: Protocol, results: Iterable[Result]) -> None:
        self.protocol = protocol
        self.planned = {run.name for run in protocol.runs()}
        self.others = 0
        """Runs of other methods, retrievers, tasks or seeds than the protocol has: left out."""
        self.results: list[Result] = []
        """Every other run, without the scores of its queries."""
        self._of: dict[tuple[str, str, str], list[Result]] = defaultdict(list)
        self.scores = cache(self._scores)
        """The scores of a method in a column; None where no run of it is done."""
        self.seed_variance = cache(self._seed_variance)
        """How far weighted sums of methods' means move from seed to seed; None if unknown.

        Columns are summed seed by seed: one pre-training serves several tasks, so that they move
        together.
        """
        self._single: dict[tuple[Run, str, str], tuple[tuple[str, ...], Values]] = {}
        orders: dict[str, tuple[str, ...]] = {}  # of queries: as texts they need the most memory
        for result in results:
            run = result.run
            if run.name not in self.planned:
                self.others += 1
                continue
            tests = {}
            for collection, test in result.tests.items():
                for measure, scores in test.per_query.items():
                    order = tuple(sorted(scores))
                    order = orders[collection] if orders.get(collection) == order else order
                    orders[collection] = order
                    values = np.fromiter(map(scores.__getitem__, order), float, len(scores))
                    self._single[run, collection, measure] = order, values
                tests[collection] = test.model_copy(update={"per_query": {}})
            light = result.model_copy(update={"tests": tests})
            self.results.append(light)
            self._of[run.method, run.retriever, run.task].append(light)

    def per_query(self, run: Run, collection: str, measure: str) -> Values:
        """The scores of a run's test queries, in the order of their ids."""
        return self._single.get((run, collection, measure), ((), np.zeros(0)))[1]

    def cost(self, method: str, retriever: str, task: str, name: str) -> float | None:
        """What the runs of one method, retriever and task took on average; None if unknown."""
        known = [getattr(one.cost, name) for one in self._of[method, retriever, task]]
        found = [value for value in known if value is not None]
        return sum(found) / len(found) if found else None

    def _scores(self, method: str, column: Column) -> Scores | None:
        of_seed: dict[int, list[Values]] = defaultdict(list)
        queries: tuple[str, ...] | None = None
        for result in self._of[method, column.retriever, column.task]:
            single = self._single.get((result.run, column.collection, column.measure))
            if single is not None:
                if queries not in (None, single[0]):
                    raise other_queries(f"runs of {method!r}", column)
                queries = single[0]
                of_seed[result.run.pretraining_seed].append(single[1])
        if queries is None:
            return None
        seeds = tuple(sorted(of_seed))
        rows = np.array([np.mean(of_seed[seed], axis=0) for seed in seeds])
        return Scores(queries, seeds, rows, sum(map(len, of_seed.values())))

    def by_method(self, column: Column) -> dict[str, Scores]:
        """The scores in a column of every method that has any."""
        found = ((method, self.scores(method, column)) for method in self.protocol.methods)
        return {method: scores for method, scores in found if scores is not None}

    def whole(self, method: str, column: Column) -> bool:
        """Whether all planned runs of a method in a column are done."""
        scores = self.scores(method, column)
        return scores is not None and scores.runs == len(self.protocol.seeds_of(column.task))

    def columns(self, retriever: str, measure: str, finetuned: bool = True) -> list[Column]:
        """A column per task of a retriever: its own collection; tasks of one next to each other.

        Without `finetuned`, those of tasks that test a model as it is.
        """
        found = [
            Column(retriever, name, task.collection, measure)
            for name, task in self.protocol.tasks.items()
            if retriever in self.protocol.retrievers_of(name) and task.finetune == finetuned
        ]
        order = list(dict.fromkeys(column.collection for column in found))
        return sorted(found, key=lambda column: order.index(column.collection))

    def _seed_variance(self, pattern: Pattern) -> SeedVariance | None:
        total, shared, freedom = 0.0, 0.0, 0
        for method in self.protocol.methods:
            found = [(weight, self.scores(method, column)) for column, weight in pattern]
            known = [(weight, scores) for weight, scores in found if scores is not None]
            seeds = set.intersection(*({*scores.seeds} for _, scores in known)) if known else set()
            if len(known) < len(pattern) or len(seeds) < 2:
                continue
            sums: dict[tuple[str, ...], Values] = {}
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


def other_queries(who: str, column: Column) -> MismatchError:
    """The refusal of runs that were scored on other queries than those next to them."""
    return MismatchError(
        f"{who} were scored on different queries of {column.collection!r} "
        f"({column.retriever}, {column.task})",
        "repeat the runs that were made with another collection",
    )


def _noise_of_queries(values: Values) -> float:
    """The part of the squared deviations of the rows' means that single entries account for."""
    queries = len(values[0])
    rest = values - values.mean(axis=1, keepdims=True) - values.mean(axis=0) + values.mean()
    return float((rest**2).sum()) / max(queries - 1, 1) / queries
