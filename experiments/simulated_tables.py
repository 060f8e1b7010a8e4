"""How often a benchmark's report finds a difference where there is none, or misses a true one.

    python experiments/simulated_tables.py equal-.010 starts-3 --tables 1000

Every table is drawn from starts whose true scores are known: ranks of the relevant document from a
distribution like that of RR@10 on InsuranceQA, with noise of each query, of each pre-training seed
(half of its variance the same in all columns), of each fine-tuning, and of all of them together.
Letters and verdicts are those of `isthmus benchmark report`. Wrong are those that the truth
contradicts: a letter or "held" without a true difference, "significantly the other way" likewise,
and "a difference of .005 or more is outside the interval" of a true one of .005 or more.
"""

from __future__ import annotations

import argparse
import math
from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from functools import cache
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special

from isthmus.benchmarks.protocol.settings import Protocol
from isthmus.benchmarks.report.claimed_places import places
from isthmus.benchmarks.report.comparisons import compare_starts
from isthmus.benchmarks.report.outcomes import Outcomes, _Run
from isthmus.benchmarks.report.settings import ReportSettings
from isthmus.benchmarks.report.verdicts import verdicts

START, TASK, LEVEL = "start-{}".format, "task-{}".format, 0.35
OTHERS = [START(number) for number in range(1, 8)]
# Of the logarithm of a rank: among queries, of a run on a query, of a start on a query.
QUERIES, OWN, TASTE = 1.5, 0.6, 0.3


@dataclass(frozen=True)
class Scenario:
    """How the noise of a table is drawn, and what is true in it."""

    noise: float = 0.05
    """The deviation of the logarithm of a rank from seed to seed: .05 moves the mean by .010."""
    starts: float = 1.0
    """How many times as much two of the eight starts (3 and 7) move."""
    column: float = 1.0
    """How many times as much all starts move in the last task of several seeds."""
    seed: float = 1.0
    """How many times as much all starts move with the last seed."""
    missing: float = 0.0
    """The share of runs that are not done."""
    missing_seconds: float = 0.0
    """The share of second fine-tunings that are not done beside these."""
    effects: tuple[float, ...] = (0.0,) * 8
    """How far each start is ahead of the first in truth."""
    queries: int = 500
    finetunings: int = 1

    def deviation(self, start: int, task: str) -> float:
        """How far a start's ranks move in a task from one seed to the next, but for the last."""
        unequal = self.starts if start in (3, 7) else 1.0
        return self.noise * unequal * (self.column if task == TASK(3) else 1.0)


AHEAD = Scenario(0.02, effects=(0.0, 0.02, *(0.0,) * 6), queries=2000, finetunings=2)
SCENARIOS = {
    "equal-0": Scenario(0.0),
    "equal-.003": Scenario(0.015),
    "equal-.010": Scenario(0.05),
    "starts-3": Scenario(starts=3.0),
    "starts-5": Scenario(starts=5.0),
    "column-3": Scenario(column=3.0),
    "seed-3": Scenario(seed=3.0),
    "incomplete": Scenario(missing=0.3, finetunings=2),
    "incomplete-starts-3": Scenario(starts=3.0, missing=0.3, finetunings=2),
    "seconds": Scenario(missing_seconds=0.5, finetunings=2),
    "seconds-starts-3": Scenario(starts=3.0, missing_seconds=0.5, finetunings=2),
    "others-.005-ahead": Scenario(0.015, effects=(0.0, *(0.005,) * 7), queries=2000),
    "one-.02-ahead": AHEAD,
    "one-.02-ahead-starts-3": replace(AHEAD, starts=3.0),
    "one-.0134-ahead": replace(AHEAD, effects=(0.0, 0.0134, *(0.0,) * 6)),
    "one-.0225-ahead": replace(AHEAD, effects=(0.0, 0.0225, *(0.0,) * 6)),
}


class Simulated(Outcomes):
    """Cells of a scenario, drawn anew for each table."""

    def __init__(self, grid: Protocol, drawn: Scenario, generator: np.random.Generator) -> None:
        super().__init__(grid, ())
        names = tuple(map(str, range(drawn.queries)))
        normal = generator.normal
        difficulty = {name: normal(0.0, QUERIES, drawn.queries) for name in grid.collections}
        for place, start in enumerate(self.starts):
            of_start = normal(size=4)
            for column in self.columns("dense", "RR@10"):
                deviation = drawn.deviation(place, column.task)
                level = _log_rank(LEVEL + drawn.effects[place], deviation)
                known = level + difficulty[column.collection] + normal(0.0, TASTE, drawn.queries)
                of_column = normal(size=4)
                for run in grid.seeds_of(column.task):
                    likely = drawn.missing + drawn.missing_seconds * (run[1] > 1)
                    if generator.random() < likely:
                        continue
                    seed = run[0]
                    moved = (of_start[seed], of_column[seed], normal()) @ np.sqrt([0.5, 0.25, 0.25])
                    moved *= deviation * (drawn.seed if seed == 3 else 1.0)
                    values = _reciprocal(known + moved + normal(0.0, OWN, drawn.queries))
                    self._runs[start, column].append(_Run(run, names, values))


def _reciprocal(log_ranks: NDArray[np.float64]) -> NDArray[np.float64]:
    ranks = np.ceil(np.exp(np.maximum(log_ranks, 0.0)))
    return np.where(ranks <= 10, 1.0 / ranks, 0.0)


@cache
def _log_rank(mean: float, deviation: float) -> float:
    """The mean logarithm of ranks at which RR@10 has this mean."""
    spread = math.hypot(QUERIES, OWN, TASTE, deviation)
    logs, ranks = np.log(np.arange(1, 11)), np.arange(1, 11)

    def lacking(level: float) -> float:
        shares = np.diff(special.ndtr((logs - level) / spread), prepend=0.0)
        return float((shares / ranks).sum()) - mean

    return float(optimize.brentq(lacking, -5.0, 10.0))


def protocol(finetunings: int) -> Protocol:
    """Eight starts, four tasks of three seeds and one of one, and claims of every shape."""
    names = [TASK(number) for number in range(4)]

    def claim(higher: list[str], lower: list[str], *tasks: str, over: str = "") -> dict[str, Any]:
        """One side against the other at these tasks; with `over`, gains at the first and others."""
        of_side = [tasks[:1], tasks[1:]] if over else [tasks, tasks]
        baseline = [over] if over else []
        return {"statement": "one is higher"} | {
            side: {"starts": starts, "over": baseline, "tasks": list(of)}
            for side, starts, of in zip(("higher", "lower"), (higher, lower), of_side, strict=True)
        }

    first, some = START(0), OTHERS[1:6]
    return Protocol.parse(
        {
            "base": {"model": "none"},
            "collections": {name: {"spec": name} for name in names},
            "starts": {name: {} for name in (first, *OTHERS)},
            "kinds": {"dense": {"recipe": "dense"}},
            "tasks": {name: {"collection": name} for name in names}
            | {"one-seed": {"collection": names[0], "seeds": {"pretraining": [2]}}},
            "measures": ["RR@10"],
            "seeds": {"pretraining": [1, 2, 3], "finetuning": [*range(1, finetunings + 1)]},
            "claims": {
                "one": claim([START(1)], [first]),
                "another": claim([START(3)], [first]),
                "two": claim([START(7)], [START(3)]),
                "many": claim(OTHERS, [first]),
                "sides": claim([START(1), START(2)], [START(4), START(5), START(6)]),
                "task": claim([START(7)], [START(1)], names[0]),
                "gains": claim(some, some, *names[:2], over=first),
                "gain": claim([START(3)], [START(3)], *names[:2], over=first),
                "seed": claim(OTHERS, OTHERS, names[0], "one-seed", over=first),
            },
        },
        where="simulation",
    )


def judge(
    drawn: Scenario, grid: Protocol, settings: ReportSettings, generator: np.random.Generator
) -> tuple[set[str], dict[str, list[float]]]:
    """What a table gets wrong, and what it finds of start 1 against all that are level."""
    outcomes = Simulated(grid, drawn, generator)
    truth = dict(zip(outcomes.starts, drawn.effects, strict=True))
    columns = outcomes.columns("dense", "RR@10")
    compared = compare_starts(outcomes, columns, settings)
    several = {column for column in columns if outcomes.seeds(column) > 1}
    wrong, found = set(), defaultdict(list)
    for pair in compared.pairs:
        if pair.column not in several:  # marked in a report: of these models alone
            continue
        difference = truth[pair.first] - truth[pair.second]
        if pair.significant and pair.estimate.queries.difference * difference <= 0.0:
            wrong.add("letters")
        if difference:
            found["letters"].append(pair.significant)
    found["letters detectable"] = [compared.detectable[column] for column in several]
    for verdict in verdicts(outcomes, settings):
        of_places = [terms for _, terms in places(verdict.claim, grid)]
        difference = fmean(sum(t.weight * truth[t.start] for t in terms) for terms in of_places)
        for said, contradicted in (
            ("held", difference < 1e-9),
            ("the other way", difference > -1e-9),
            ("outside the interval", difference > settings.smallest_effect - 1e-9),
        ):
            if contradicted and said in f"{verdict.decision}: {verdict.reason}":
                wrong.add(said)
        if verdict.name == "one" and verdict.overall is not None:
            found["one"].append(verdict.decision == "held")
            found["one detectable"].append(verdict.overall.detectable or math.nan)
    return wrong, found


def main() -> None:
    """Prints a row per scenario."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("scenarios", nargs="*", default=[*SCENARIOS], help=", ".join(SCENARIOS))
    parser.add_argument("--tables", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--over", default="both")
    parser.add_argument("--correction", default="holm")
    chosen = parser.parse_args()
    settings = ReportSettings.parse(
        {"over": chosen.over, "correction": chosen.correction}, where="--over, --correction"
    )
    kinds = ("letters", "held", "the other way", "outside the interval")
    numbers = ("letters", "letters detectable", "one", "one detectable")
    heads = ["scenario", *kinds, "any verdict", *(f"found: {name}" for name in numbers)]
    print(f"| {' | '.join(heads)} |")
    print("| --- |" + " ---: |" * (len(kinds) + len(numbers) + 1))
    for name in chosen.scenarios:
        drawn = SCENARIOS[name]
        grid = protocol(drawn.finetunings)
        counts: Counter[str] = Counter()
        found: dict[str, list[float]] = defaultdict(list)
        for number in range(chosen.tables):
            generator = np.random.default_rng([chosen.seed, number])
            wrong, here = judge(drawn, grid, settings, generator)
            counts.update(wrong)
            counts["any verdict"] += bool(wrong - {"letters"})
            for what, values in here.items():
                found[what] += values
        cells = [f"{counts[kind] / chosen.tables:.1%}" for kind in (*kinds, "any verdict")]
        cells += [f"{fmean(found[what]):.4f}" if found[what] else "" for what in numbers]
        print(f"| {name} |", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    main()
