"""Letters that are earned: over queries, over seeds, over both, corrected over a whole table."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats
from tests.unit.benchmarks.made_cells import protocol, results

from isthmus.benchmarks.protocol.settings import Protocol
from isthmus.benchmarks.report.comparisons import Term, compare_starts, estimate
from isthmus.benchmarks.report.outcomes import Column, Outcomes, Scores
from isthmus.benchmarks.report.settings import ReportSettings
from isthmus.errors import MismatchError

BOTH, QUERIES = ReportSettings(), ReportSettings(over="queries")
COLUMN = Column("dense", "insurance-1000", "insurance", "RR@10")
RUNS = frozenset({(1, 1), (2, 1), (3, 1)})


class Drawn(Outcomes):
    """Starts without a difference: noise of queries, of seeds, and of both."""

    def __init__(self, made: Protocol, seed: int, seed_noise: float) -> None:
        super().__init__(made, ())
        self.generator, self.seed_noise = np.random.default_rng(seed), seed_noise

    def _read(self, start: str, column: Column) -> Scores:
        shift = self.seed_noise * self.generator.normal(size=(3, 1))
        values = 0.4 + shift + 0.3 * self.generator.normal(size=(3, 100))
        return Scores(tuple(map(str, range(100))), (1, 2, 3), values, RUNS)


def share_of_tables(settings: ReportSettings, seed_noise: float, tables: int = 80) -> float:
    made = protocol(["a", "b", "c", "d"])
    found = 0
    for seed in range(tables):
        outcomes = Drawn(made, seed, seed_noise)
        compared = compare_starts(outcomes, outcomes.columns("dense", "RR@10"), settings)
        assert len(compared.pairs) == 18
        found += any(pair.significant for pair in compared.pairs)
    return found / tables


# 1,000 tables, more starts and ranks like real ones: experiments/simulated_tables.py.
def test_letters_without_a_difference_are_rare() -> None:
    assert share_of_tables(QUERIES, 0.0) <= 0.1
    assert share_of_tables(BOTH, 0.0) <= 0.1
    assert share_of_tables(BOTH, 0.04) <= 0.1


def test_a_start_whose_seeds_move_further_counts_with_its_own_variance() -> None:
    class Moved(Drawn):
        """Means that move by known amounts, without any noise of queries."""

        def _read(self, start: str, column: Column) -> Scores:
            by = {"a": 0.05, "b": 0.01, "c": 0.02, "d": 0.01}[start]
            values = np.full((3, 100), 0.4) + by * np.array([[-1.0], [0.0], [1.0]])
            return Scores(tuple(map(str, range(100))), (1, 2, 3), values, RUNS)

    outcomes = Moved(protocol(["a", "b", "c", "d"]), 0, 0.0)
    pooled = (0.05**2 + 0.01**2 + 0.02**2 + 0.01**2) / 4
    loud, quiet = (
        estimate(outcomes, [Term(1.0, start, COLUMN), Term(-1.0, "c", COLUMN)]) for start in "ab"
    )
    assert loud is not None
    assert quiet is not None
    assert quiet.both.error**2 == pytest.approx(2 * pooled / 3)
    assert quiet.both.freedom == pytest.approx(8)
    above = 0.05**2 - pooled
    assert loud.both.error**2 == pytest.approx((2 * pooled + above) / 3)
    satterthwaite = (2 * pooled + above) ** 2 / ((2 * pooled) ** 2 / 8 + above**2 / 2)
    assert loud.both.freedom == pytest.approx(satterthwaite)


def test_seeds_that_differ_deceive_a_test_over_queries_alone() -> None:
    assert share_of_tables(QUERIES, 0.04, tables=30) > 0.3


def test_the_three_tests_beside_plain_ones() -> None:
    made = protocol(["none", "bow"])
    outcomes = Outcomes(made, results(made, {"bow": 0.03}, seed_noise=0.004))
    found = estimate(outcomes, [Term(1.0, "bow", COLUMN), Term(-1.0, "none", COLUMN)])
    scores = {start: outcomes.scores(start, COLUMN) for start in ("none", "bow")}
    assert found is not None
    bow, none = (scores[start].values for start in ("bow", "none"))  # type: ignore[union-attr]
    by_query = stats.ttest_rel(bow.mean(axis=0), none.mean(axis=0))
    assert found.queries.p_value == pytest.approx(by_query.pvalue)
    by_seed = stats.ttest_rel(bow.mean(axis=1), none.mean(axis=1))
    assert found.seeds.p_value == pytest.approx(by_seed.pvalue)
    assert found.both.difference == found.queries.difference
    assert found.both.error >= found.queries.error
    assert (found.number_of_queries, found.number_of_seeds) == (200, 3)


def test_a_true_difference_earns_its_letter() -> None:
    made = protocol(["none", "mlm", "bow"])
    outcomes = Outcomes(made, results(made, {"bow": 0.05}, seed_noise=0.002))
    compared = compare_starts(outcomes, outcomes.columns("dense", "RR@10"), BOTH)
    assert compared.beats["bow", COLUMN] == "ab"
    assert compared.beats["none", COLUMN] == compared.beats["mlm", COLUMN] == ""
    # The typical of the column's three pairs, at the level that correcting all nine leaves each.
    effects = [pair.estimate.both for pair in compared.pairs if pair.column == COLUMN]
    typical = sorted(effects, key=lambda effect: effect.error)[1]
    assert compared.detectable[COLUMN] == typical.detectable(0.05 / 9, 0.8)
    assert 0.005 < compared.detectable[COLUMN] < 0.05


def test_starts_are_compared_by_the_runs_that_both_have() -> None:
    made = protocol(["none", "mlm", "bow"])
    every = results(made, {}, seed_noise=0.002)
    missing = [one for one in every if (one.cell.start, one.cell.pretraining_seed) != ("bow", 3)]
    outcomes = Outcomes(made, missing)
    pairs = compare_starts(outcomes, [COLUMN], BOTH).pairs
    found = {(pair.first, pair.second): pair.estimate for pair in pairs}
    none, bow = (outcomes.scores(start, COLUMN) for start in ("none", "bow"))
    assert none is not None
    assert bow is not None
    alike = none.values[:2].mean() - bow.values.mean()
    assert found["none", "bow"].queries.difference == pytest.approx(alike)
    assert found["none", "bow"].queries.difference != pytest.approx(none.mean - bow.mean)
    assert found["none", "mlm"].number_of_seeds == 3


def test_one_common_run_does_not_make_a_test_blind_for_seeds() -> None:
    made = protocol(["none", "mlm", "bow"])
    every = results(made, {}, seed_noise=0.05)
    outcomes = Outcomes(
        made, [r for r in every if (r.cell.start, r.cell.pretraining_seed) not in
               {("bow", 2), ("bow", 3)}]
    )  # fmt: skip
    pairs = compare_starts(outcomes, [COLUMN], BOTH).pairs
    assert all(pair.estimate.knows_seeds for pair in pairs)


def test_collections_are_independent_and_tasks_of_one_are_paired() -> None:
    made = protocol(["none", "bow"])
    outcomes = Outcomes(made, results(made, {"bow": 0.03}, noise=0.2))
    columns = outcomes.columns("dense", "RR@10")
    gains = [
        estimate(outcomes, [Term(1.0, "bow", column), Term(-1.0, "none", column)])
        for column in columns
    ]
    terms = [
        Term(sign * weight, start, column)
        for weight, column in ((0.5, columns[0]), (0.5, columns[2]))
        for sign, start in ((1.0, "bow"), (-1.0, "none"))
    ]
    both = estimate(outcomes, terms)
    assert both is not None
    errors = [gain.queries.error for gain in gains if gain is not None]
    assert both.queries.error == pytest.approx(0.5 * np.hypot(errors[0], errors[2]))
    assert both.number_of_queries == 400


def test_tasks_that_share_a_pretraining_move_together() -> None:
    class Shared(Drawn):
        """Every start's seeds move all tasks by the same, besides noise of queries."""

        def _read(self, start: str, column: Column) -> Scores:
            shift = 0.05 * np.random.default_rng(ord(start)).normal(size=(3, 1))
            values = 0.4 + shift + 0.01 * self.generator.normal(size=(3, 100))
            return Scores(tuple(map(str, range(100))), (1, 2, 3), values, RUNS)

    outcomes = Shared(protocol(["a", "b", "c", "d"]), 0, 0.0)
    columns = outcomes.columns("dense", "RR@10")
    one = [Term(1.0, "a", columns[0]), Term(-1.0, "b", columns[0])]
    average = [
        Term(sign / 3, start, column) for column in columns for sign, start in ((1, "a"), (-1, "b"))
    ]
    gain = [*one, Term(-1.0, "a", columns[1]), Term(1.0, "b", columns[1])]
    alone, together, interaction = (estimate(outcomes, terms) for terms in (one, average, gain))
    assert alone is not None
    assert together is not None
    assert interaction is not None
    assert together.both.error == pytest.approx(alone.both.error, rel=0.05)
    assert interaction.both.error < alone.both.error / 5  # what both tasks have cancels


def test_one_seed_speaks_of_queries_alone() -> None:
    made = protocol(["none", "bow"], seeds=[1])
    outcomes = Outcomes(made, results(made, {"bow": 0.05}))
    found = estimate(outcomes, [Term(1.0, "bow", COLUMN), Term(-1.0, "none", COLUMN)])
    assert found is not None
    assert found.both == found.queries
    assert found.seeds.p_value == 1.0


def test_other_queries_are_refused() -> None:
    made = protocol(["none", "bow"], seeds=[1])
    cells = results(made, {})
    changed: Any = cells[1].tests["insurance"].per_query["RR@10"]
    changed["other"] = changed.pop("q0")
    with pytest.raises(MismatchError, match="different queries of 'insurance'"):
        compare_starts(Outcomes(made, cells), [COLUMN], BOTH)
