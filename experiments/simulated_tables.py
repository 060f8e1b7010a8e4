"""How often the letters of a benchmark's table find a difference where there is none.

    python experiments/simulated_tables.py --tables 1000

Every table is drawn from starts that are all alike: ranks of the relevant document from a
distribution like that of RR@10 on InsuranceQA, with noise of each query, of each seed (most of it
the same in all columns, as of one pre-training), and of each pair of them. What is printed is the
share of tables with at least one letter, for the tests of `isthmus benchmark report`, and that of
claims about two starts whose average over all columns is significant.
"""

from __future__ import annotations

import argparse
import math
from collections import Counter

import numpy as np
from numpy.typing import NDArray

from isthmus.benchmarks.protocol.settings import Protocol
from isthmus.benchmarks.report.comparisons import Term, compare_starts, estimate
from isthmus.benchmarks.report.outcomes import Column, Outcomes, Scores
from isthmus.benchmarks.report.settings import ReportSettings

# How far the mean RR@10 moves, by the deviation of the logarithm of a rank from seed to seed.
SEED_NOISE = {"nothing": 0.0, "about .003": 0.015, "about .010": 0.05}
JUDGED_BY = {
    "queries and seeds, Holm": ReportSettings(over="both"),
    "queries, Holm": ReportSettings(over="queries"),
    "queries, uncorrected": ReportSettings(over="queries", correction="none"),
}
CLAIMS = {"a claim, queries and seeds": "both", "a claim, queries": "queries"}


class Simulated(Outcomes):
    """Scores of starts without any difference between them."""

    def __init__(
        self, protocol: Protocol, queries: int, seed_noise: float, generator: np.random.Generator
    ) -> None:
        super().__init__(protocol, ())
        self.generator, self.seed_noise = generator, seed_noise
        self.names = tuple(map(str, range(queries)))
        self.of_start: dict[str, NDArray[np.float64]] = {}
        shape = len(protocol.collections), queries
        self.difficulty = dict(
            zip(protocol.collections, generator.normal(1.5, 1.5, shape), strict=True)
        )

    def _read(self, start: str, column: Column) -> Scores:
        seeds = tuple(self.protocol.seeds.pretraining)
        shape = len(seeds), len(self.names)
        if start not in self.of_start:
            self.of_start[start] = self.generator.normal(size=(len(seeds), 1))
        anew = self.generator.normal(size=(len(seeds), 1))
        of_seed = self.seed_noise * (0.8 * self.of_start[start] + 0.6 * anew)
        own = self.generator.normal(size=shape) * 0.6 + self.generator.normal(size=shape[1]) * 0.3
        ranks = np.ceil(np.exp(self.difficulty[column.collection] + of_seed + own))
        values = np.where(ranks <= 10, 1.0 / np.maximum(ranks, 1.0), 0.0)
        return Scores(self.names, seeds, values, frozenset((seed, 1) for seed in seeds))


def protocol(starts: int, columns: int, seeds: int) -> Protocol:
    """A grid of so many starts, tasks on collections of their own, and pre-training seeds."""
    names = [f"task-{number}" for number in range(columns)]
    return Protocol.parse(
        {
            "base": {"model": "none"},
            "collections": {name: {"spec": name} for name in names},
            "starts": {f"start-{number}": {} for number in range(starts)},
            "kinds": {"dense": {"recipe": "dense"}},
            "tasks": {name: {"collection": name} for name in names},
            "measures": ["RR@10"],
            "seeds": {"pretraining": list(range(1, seeds + 1))},
        },
        where="simulation",
    )


def main() -> None:
    """Prints a row per test and amount of noise between seeds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    for name, value in (("tables", 1000), ("starts", 8), ("columns", 4), ("queries", 500),
                        ("seeds", 3), ("seed", 0)):  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=value)
    chosen = parser.parse_args()
    grid = protocol(chosen.starts, chosen.columns, chosen.seeds)
    print("| test | seeds move the mean by | spread of means | found a difference | 95 % of it |")
    print("| --- | --- | ---: | ---: | ---: |")
    for name, noise in SEED_NOISE.items():
        found: Counter[str] = Counter()
        spreads = []
        for number in range(chosen.tables):
            generator = np.random.default_rng([chosen.seed, number])
            outcomes = Simulated(grid, chosen.queries, noise, generator)
            columns = outcomes.columns("dense", "RR@10")
            for judged, settings in JUDGED_BY.items():
                compared = compare_starts(outcomes, columns, settings)
                found[judged] += any(pair.significant for pair in compared.pairs)
            claim = [
                Term(sign / len(columns), start, column)
                for column in columns
                for sign, start in zip((1.0, -1.0), outcomes.starts, strict=False)
            ]
            average = estimate(outcomes, claim)
            for judged, over in CLAIMS.items():
                found[judged] += getattr(average, over).p_value < 0.05
            variance = outcomes.seed_variance(((columns[0], 1.0),))
            spreads.append(math.sqrt(variance.total) if variance else math.nan)
        for judged in (*JUDGED_BY, *CLAIMS):
            share = found[judged] / chosen.tables
            reach = 1.96 * math.sqrt(share * (1 - share) / chosen.tables)
            interval = f"{max(share - reach, 0):.1%} to {min(share + reach, 1):.1%}"
            spread = f"{np.mean(spreads):.4f}"
            print(f"| {judged} | {name} | {spread} | {share:.1%} | {interval} |", flush=True)


if __name__ == "__main__":
    main()
