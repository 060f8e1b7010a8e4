"""Letters and verdicts whose truth is known: over queries and seeds, corrected over families."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats
from tests.unit.benchmarks.made_runs import TASKS, protocol, results

from isthmus.benchmarks.protocol.runs import Result
from isthmus.benchmarks.report.scores import Column, Grid
from isthmus.benchmarks.report.settings import ReportSettings
from isthmus.benchmarks.report.verdicts import Term, Verdict, estimate, letters, verdicts
from isthmus.errors import MismatchError

METHODS = ["none", "mlm", "bow", "retromae"]
COLUMN = Column("dense", "insurance-1000", "insurance", "RR@10")
BEATS: dict[str, Any] = {
    "statement": "bow beats mlm",
    "higher": {"methods": ["bow"]},
    "lower": {"methods": ["mlm"]},
}


def judged(
    claim: dict[str, Any],
    gains: dict[str, Any],
    keep: Any = lambda result: True,
    **more: Any,
) -> Verdict:
    made = protocol(METHODS, more.pop("retrievers", ("dense",)), claims={"it": claim})
    done = [result for result in results(made, gains, **more) if keep(result)]
    (verdict,) = verdicts(Grid(made, done), ReportSettings())
    return verdict


def test_a_large_difference_holds() -> None:
    verdict = judged(BEATS, {"bow": 0.04}, seed_noise=0.003)
    assert verdict.decision == "supported"
    named = [found.setting for found in verdict.findings]
    assert named == [f"dense, {task}" for task in TASKS]
    assert verdict.overall is not None
    assert verdict.overall.difference == pytest.approx(0.04, abs=0.01)
    low, high = verdict.overall.interval
    assert low < 0.04 < high


def test_a_difference_the_other_way_does_not_hold() -> None:
    verdict = judged(BEATS, {"mlm": 0.04})
    assert verdict.decision == "not supported"
    assert "the other way" in verdict.reason


def test_no_difference_that_matters_does_not_hold() -> None:
    verdict = judged(BEATS, {}, queries=2000, noise=0.05, seed=1)
    assert verdict.decision == "not supported"
    assert "outside the interval" in verdict.reason


def test_averages_are_corrected_for_the_number_of_claims() -> None:
    gains = {"bow": 0.004}
    alone = judged(BEATS, gains, seed_noise=0.001)
    made = protocol(METHODS, claims={name: {**BEATS, "statement": name} for name in "abcd"})
    together = verdicts(Grid(made, results(made, gains, seed_noise=0.001)), ReportSettings())
    assert alone.overall is not None
    expected = min(1.0, 4 * alone.overall.p_value)
    for one in together:
        assert one.overall is not None
        assert one.overall.p_value == pytest.approx(expected)


def test_too_little_data_leaves_it_open() -> None:
    verdict = judged(BEATS, {"bow": 0.003}, queries=20, noise=0.3)
    assert verdict.decision == "inconclusive"


def test_significantly_for_and_against_is_open() -> None:
    gains = {"bow": {"insurance-1000": 0.15, "insurance-all": 0.1, "medicine-1000": -0.05}}
    verdict = judged(BEATS, gains)
    assert verdict.decision == "inconclusive"
    assert verdict.reason.endswith("dense, medicine-1000")


def test_each_side_is_averaged_over_its_own_methods_and_tasks() -> None:
    claim = {
        "statement": "they are ahead on insurance",
        "higher": {"methods": ["bow", "mlm"], "tasks": ["insurance-1000", "insurance-all"]},
        "lower": {"methods": ["bow"], "tasks": ["insurance-1000"]},
    }
    gains = {"bow": {"insurance-1000": 0.08, "insurance-all": 0.04}, "mlm": 0.02}
    overall = judged(claim, gains, noise=0.01).overall
    assert overall is not None
    assert overall.difference == pytest.approx((0.06 + 0.02) / 2 - 0.08, abs=0.005)


def test_retrievers_are_judged_one_by_one_or_against_each_other() -> None:
    assert len(judged(BEATS, {"bow": 0.04}, retrievers=("dense", "sparse")).findings) == 6
    most = {
        "statement": "sparse is ahead",
        "higher": {"methods": ["bow"], "retrievers": ["sparse"]},
        "lower": {"methods": ["bow"], "retrievers": ["dense"]},
    }
    verdict = judged(most, {"bow": 0.04}, retrievers=("dense", "sparse"))
    assert [found.setting for found in verdict.findings] == list(TASKS)
    assert verdict.overall is not None
    assert abs(verdict.overall.difference) < 0.015


def test_a_claim_that_lacks_a_run_is_incomplete_and_says_which() -> None:
    def keep(result: Result) -> bool:
        run = result.run
        return (run.method, run.task, run.pretraining_seed) != ("mlm", "insurance-all", 2)

    verdict = judged(BEATS, {"bow": 0.04}, keep)
    assert (verdict.decision, verdict.overall, verdict.findings) == ("incomplete", None, ())
    assert verdict.reason == "planned runs are not done: mlm (dense, insurance-all)"
    elsewhere = {**BEATS, "higher": {"methods": ["bow"], "tasks": ["medicine-1000"]},
                 "lower": {"methods": ["mlm"], "tasks": ["medicine-1000"]}}  # fmt: skip
    assert judged(elsewhere, {"bow": 0.04}, keep).decision == "supported"


def test_one_seed_decides_nothing_about_methods() -> None:
    made = protocol(METHODS, seeds=[1], claims={"it": BEATS})
    (verdict,) = verdicts(Grid(made, results(made, {"bow": 0.04})), ReportSettings())
    assert verdict.decision == "inconclusive"
    assert verdict.reason.startswith("one seed: significant for these models")


def test_the_effect_is_that_over_queries_with_the_pooled_variance_of_seeds() -> None:
    made = protocol(["none", "bow"])
    grid = Grid(made, results(made, {"bow": 0.03}, seed_noise=0.03))
    found, over_seeds = estimate(grid, [Term(1.0, "bow", COLUMN), Term(-1.0, "none", COLUMN)])
    bow, none = (grid.scores(start, COLUMN) for start in ("bow", "none"))
    assert bow is not None
    assert none is not None
    by_query = bow.values.mean(axis=0) - none.values.mean(axis=0)
    assert over_seeds
    assert found.difference == pytest.approx(by_query.mean())
    pooled = (bow.spread**2 + none.spread**2) / 2
    variance = grid.seed_variance(((COLUMN, 1.0),))
    assert variance is not None
    assert (variance.pooled, variance.freedom) == (pytest.approx(pooled), 4)
    error = by_query.var(ddof=1) / 200 + 2 * (pooled - variance.shared) / 3
    assert found.error**2 == pytest.approx(error)


def test_of_one_seed_it_is_the_paired_t_test_over_queries() -> None:
    made = protocol(["none", "bow"], seeds=[1])
    grid = Grid(made, results(made, {"bow": 0.05}))
    found, over_seeds = estimate(grid, [Term(1.0, "bow", COLUMN), Term(-1.0, "none", COLUMN)])
    bow, none = (grid.scores(start, COLUMN) for start in ("bow", "none"))
    assert bow is not None
    assert none is not None
    assert not over_seeds
    tested = stats.ttest_rel(bow.values[0], none.values[0])
    assert found.p_value == pytest.approx(tested.pvalue)


def test_collections_are_independent_and_tasks_of_one_are_paired() -> None:
    made = protocol(["none", "bow"], seeds=[1])
    grid = Grid(made, results(made, {"bow": 0.03}, noise=0.2))
    columns = grid.columns("dense", "RR@10")
    errors = []
    for column in columns:
        gain, _ = estimate(grid, [Term(1.0, "bow", column), Term(-1.0, "none", column)])
        errors.append(gain.error)
    terms = [
        Term(sign / 2, start, column)
        for column in (columns[0], columns[2])
        for sign, start in ((1.0, "bow"), (-1.0, "none"))
    ]
    both, _ = estimate(grid, terms)
    assert both.error == pytest.approx(0.5 * np.hypot(errors[0], errors[2]))


def test_tasks_that_share_a_pretraining_move_together() -> None:
    """A seed moves all tasks by as much: their mean moves like each, their difference not."""
    made = protocol(["a", "b", "c", "d"])
    shift = {key: 0.05 * value for key, value in zip(
        [(start, seed) for start in "abcd" for seed in (1, 2, 3)],
        np.random.default_rng(0).normal(size=12), strict=True)}  # fmt: skip
    done = []
    for one in results(made, {}, noise=0.01):
        scores = one.tests[TASKS[one.run.task]["collection"]].per_query["RR@10"]
        moved = shift[one.run.method, one.run.pretraining_seed]
        scores.update({query: value + moved for query, value in scores.items()})
        done.append(one)
    grid = Grid(made, done)
    columns = grid.columns("dense", "RR@10")
    one = [Term(1.0, "a", columns[0]), Term(-1.0, "b", columns[0])]
    average = [
        Term(sign / 3, start, column) for column in columns for sign, start in ((1, "a"), (-1, "b"))
    ]
    gain = [*one, Term(-1.0, "a", columns[1]), Term(1.0, "b", columns[1])]
    alone, together, interaction = (estimate(grid, terms)[0] for terms in (one, average, gain))
    assert together.error == pytest.approx(alone.error, rel=0.05)
    assert interaction.error < alone.error / 5


def test_a_mean_that_differs_by_rounding_alone_has_no_variance() -> None:
    made = protocol(["none"])
    done = results(made, {}, queries=2)
    for one in done:
        scores = one.tests[TASKS[one.run.task]["collection"]].per_query["RR@10"]
        scores.update({"q0": 0.1 + 1e-13 * one.run.pretraining_seed, "q1": 0.2})
    assert Grid(made, done).seed_variance(((COLUMN, 1.0),)) is None


@pytest.mark.parametrize("seed_noise", [0.0, 0.04])
def test_letters_without_a_difference_are_rare(seed_noise: float) -> None:
    made, tables = protocol(["a", "b", "c", "d"]), 40
    found = 0
    for seed in range(tables):
        done = results(made, {}, queries=100, seed_noise=seed_noise, noise=0.3, seed=seed)
        grid = Grid(made, done)
        columns = grid.columns("dense", "RR@10")
        found += bool(letters(grid, columns, ReportSettings()))
    assert found / tables <= 0.15


def test_a_true_difference_earns_its_letter_where_all_runs_are_done() -> None:
    made = protocol(["none", "mlm", "bow"])
    done = [
        one for one in results(made, {"bow": 0.05}, seed_noise=0.002)
        if one.run.name != "insurance-all.dense.mlm.p3.f1"
    ]  # fmt: skip
    grid = Grid(made, done)
    columns = grid.columns("dense", "RR@10")
    found = letters(grid, columns, ReportSettings())
    assert [found.get(("bow", column)) for column in columns] == ["ab", "a", "ab"]


def test_other_queries_are_refused() -> None:
    made = protocol(["none", "bow"], seeds=[1])
    done = results(made, {})
    changed: Any = done[1].tests["insurance"].per_query["RR@10"]
    changed["other"] = changed.pop("q0")
    with pytest.raises(MismatchError, match="different queries of 'insurance'"):
        letters(Grid(made, done), [COLUMN], ReportSettings())
