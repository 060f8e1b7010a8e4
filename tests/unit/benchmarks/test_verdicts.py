"""Claims whose truth is known: they hold, do not hold, or stay open, and say why."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.benchmarks.made_cells import TASKS, protocol, results

from isthmus.benchmarks.protocol.cells import CellResult
from isthmus.benchmarks.report.outcomes import Outcomes
from isthmus.benchmarks.report.settings import ReportSettings
from isthmus.benchmarks.report.verdicts import Verdict, verdicts

STARTS = ["none", "mlm", "bow", "retromae"]
BEATS: dict[str, Any] = {
    "statement": "bow beats mlm",
    "higher": {"starts": ["bow"]},
    "lower": {"starts": ["mlm"]},
}
SHRINKS: dict[str, Any] = {
    "statement": "gains shrink with more queries",
    "higher": {"starts": ["bow"], "over": ["none"], "tasks": ["insurance-1000"]},
    "lower": {"starts": ["bow"], "over": ["none"], "tasks": ["insurance-all"]},
}


def judged(
    claim: dict[str, Any],
    gains: dict[str, Any],
    keep: Any = lambda result: True,
    **more: Any,
) -> Verdict:
    made = protocol(STARTS, more.pop("kinds", ("dense",)), claims={"it": claim})
    settings = more.pop("settings", ReportSettings())
    cells = [result for result in results(made, gains, **more) if keep(result)]
    (verdict,) = verdicts(Outcomes(made, cells), settings)
    return verdict


def test_a_large_difference_holds() -> None:
    verdict = judged(BEATS, {"bow": 0.04}, seed_noise=0.003)
    assert verdict.decision == "held"
    assert verdict.complete
    places = [found.place for found in verdict.findings]
    assert places == [f"dense, {task}" for task in ("insurance-1000", "insurance-all",
                                                    "medicine-1000")]  # fmt: skip
    assert verdict.overall is not None
    assert verdict.overall.difference == pytest.approx(0.04, abs=0.01)
    low, high = verdict.overall.interval or (0.0, 0.0)
    assert low < 0.04 < high


def test_a_difference_the_other_way_does_not_hold() -> None:
    verdict = judged(BEATS, {"mlm": 0.04})
    assert verdict.decision == "did not hold"
    assert "the other way" in verdict.reason


def test_no_difference_that_matters_does_not_hold() -> None:
    verdict = judged(BEATS, {}, queries=2000, noise=0.05, seed=1)
    assert verdict.decision == "did not hold"
    assert "outside the interval" in verdict.reason


def test_what_decides_against_a_claim_is_corrected_for_the_number_of_claims() -> None:
    """The interval of the average ends below .005, but not with eight claims at once."""
    more: dict[str, Any] = {"queries": 200, "noise": 0.01, "seed": 2}
    settings = ReportSettings(over="queries")
    alone = judged(BEATS, {}, settings=settings, **more)
    assert alone.overall is not None
    assert alone.overall.interval is not None
    assert alone.overall.bound == pytest.approx(alone.overall.interval[1])
    smallest = alone.overall.interval[1] + 1e-5
    settings = ReportSettings(over="queries", smallest_effect=smallest)
    assert judged(BEATS, {}, settings=settings, **more).decision == "did not hold"
    claims = {name: {**BEATS, "statement": name} for name in "abcdefgh"}
    made = protocol(STARTS, claims=claims)
    outcomes = Outcomes(made, results(made, {}, **more))
    assert {one.decision for one in verdicts(outcomes, settings)} == {"undecided"}
    plain = ReportSettings(over="queries", smallest_effect=smallest, correction="none")
    assert {one.decision for one in verdicts(outcomes, plain)} == {"did not hold"}


def test_too_little_data_leaves_it_open() -> None:
    verdict = judged(BEATS, {"bow": 0.003}, queries=20, noise=0.3)
    assert verdict.decision == "undecided"
    assert verdict.overall is not None
    assert verdict.overall.detectable is not None
    assert f"{verdict.overall.detectable:.3f} would have been found" in verdict.reason


def test_seeds_that_differ_leave_it_open_where_queries_alone_would_not() -> None:
    more: dict[str, Any] = {"queries": 2000, "seed_noise": 0.05, "noise": 0.05}
    claim = {**BEATS, "higher": {"starts": ["bow"], "tasks": ["medicine-1000"]},
             "lower": {"starts": ["mlm"], "tasks": ["medicine-1000"]}}  # fmt: skip
    assert judged(claim, {}, **more).decision == "undecided"
    alone = judged(claim, {}, settings=ReportSettings(over="queries"), **more)
    assert alone.decision != "undecided"  # of a difference that is not there


def test_significantly_for_and_against_is_open() -> None:
    gains = {"bow": {"insurance-1000": 0.15, "insurance-all": 0.1, "medicine-1000": -0.05}}
    verdict = judged(BEATS, gains)
    assert verdict.decision == "undecided"
    assert verdict.reason.endswith("dense, medicine-1000")


def test_a_gain_that_shrinks() -> None:
    shrinking = {"bow": {"insurance-1000": 0.06, "insurance-all": 0.01}}
    assert judged(SHRINKS, shrinking).decision == "held"
    growing = {"bow": {"insurance-1000": 0.01, "insurance-all": 0.06}}
    verdict = judged(SHRINKS, growing)
    assert verdict.decision == "did not hold"
    assert verdict.overall is not None
    assert verdict.overall.difference == pytest.approx(-0.05, abs=0.015)
    assert [found.place for found in verdict.findings] == ["dense"]


def test_each_side_is_averaged_over_its_own_tasks() -> None:
    claim = {
        "statement": "bow gains more on insurance",
        "higher": {
            "starts": ["bow"],
            "over": ["none"],
            "tasks": ["insurance-1000", "insurance-all"],
        },
        "lower": {"starts": ["bow"], "over": ["none"], "tasks": ["medicine-1000"]},
    }
    gains = {"bow": {"insurance-1000": 0.08, "insurance-all": 0.04, "medicine-1000": 0.02}}
    overall = judged(claim, gains, noise=0.01).overall
    assert overall is not None
    assert overall.difference == pytest.approx(0.06 - 0.02, abs=0.005)


def test_kinds_are_judged_one_by_one_or_against_each_other() -> None:
    verdict = judged(BEATS, {"bow": 0.04}, kinds=("dense", "sparse"))
    assert len(verdict.findings) == 6
    most = {
        "statement": "bow helps sparse most",
        "higher": {"starts": ["bow"], "over": ["mlm"], "kinds": ["sparse"]},
        "lower": {"starts": ["bow"], "over": ["mlm"], "kinds": ["dense"]},
    }
    verdict = judged(most, {"bow": 0.04}, kinds=("dense", "sparse"))
    assert [found.place for found in verdict.findings] == ["insurance-1000", "insurance-all",
                                                           "medicine-1000"]  # fmt: skip
    assert verdict.overall is not None
    assert abs(verdict.overall.difference) < 0.015


def test_missing_cells_are_named_and_the_rest_is_judged() -> None:
    claim = {**BEATS, "higher": {"starts": ["bow", "retromae"]}}

    def keep(result: CellResult) -> bool:
        cell = result.cell
        return not (cell.start == "retromae" and cell.task == "insurance-all") and not (
            cell.start == "mlm" and cell.task == "medicine-1000"
        )

    verdict = judged(claim, {"bow": 0.04, "retromae": 0.04}, keep)
    assert verdict.decision == "held"
    assert not verdict.complete
    assert [found.without for found in verdict.findings] == [(), ("retromae",), ("mlm",)]
    assert verdict.findings[2].estimate is None
    assert verdict.findings[1].estimate is not None
    assert verdict.findings[1].difference == pytest.approx(0.04, abs=0.015)  # of bow alone


def test_a_start_that_one_side_lacks_is_left_out_on_the_other() -> None:
    claim = {side: {**SHRINKS[side], "starts": ["bow", "retromae"]} for side in ("higher", "lower")}

    def keep(result: CellResult) -> bool:
        return not (result.cell.start == "retromae" and result.cell.task == "insurance-all")

    gains = {"bow": 0.04, "retromae": {"insurance-1000": 0.2}}
    verdict = judged({**SHRINKS, **claim}, gains, keep)
    assert verdict.findings[0].without == ("retromae",)
    assert abs(verdict.findings[0].difference) < 0.015  # of bow alone, whose gain does not shrink


def test_places_of_one_seed_are_shown_and_not_averaged() -> None:
    def keep(result: CellResult) -> bool:
        return result.cell.task != "insurance-all" or result.cell.pretraining_seed == 2

    gains = {"bow": {"insurance-1000": 0.04, "medicine-1000": 0.04, "insurance-all": -0.3}}
    verdict = judged(BEATS, gains, keep, seed_noise=0.003)
    assert verdict.decision == "held"
    assert "2 of 2 places" in verdict.reason
    assert verdict.findings[1].difference == pytest.approx(-0.3, abs=0.03)
    assert verdict.overall is not None
    assert verdict.overall.difference == pytest.approx(0.04, abs=0.015)


def test_one_seed_decides_nothing_about_methods() -> None:
    def first(result: CellResult) -> bool:
        return result.cell.pretraining_seed == 1

    verdict = judged(BEATS, {"bow": 0.04}, first)
    assert verdict.decision == "undecided"
    assert verdict.reason.startswith("one seed: significant for these models")
    assert not verdict.complete  # two runs of three are missing
    alone = judged(BEATS, {"bow": 0.04}, first, settings=ReportSettings(over="queries"))
    assert alone.decision == "held"


def test_nothing_done_is_open() -> None:
    verdict = judged(BEATS, {}, lambda result: result.cell.start == "none")
    assert (verdict.decision, verdict.overall) == ("undecided", None)


def test_averages_are_corrected_for_the_number_of_claims() -> None:
    gains = {"bow": 0.004}
    alone = judged(BEATS, gains, seed_noise=0.001)
    claims = {name: {**BEATS, "statement": name} for name in "abcd"}
    made = protocol(STARTS, ("dense",), claims=claims)
    together = verdicts(Outcomes(made, results(made, gains, seed_noise=0.001)), ReportSettings())
    assert alone.overall is not None
    expected = min(1.0, 4 * alone.overall.corrected_p_value)
    for one in together:
        assert one.overall is not None
        assert one.overall.corrected_p_value == pytest.approx(expected)
        assert (one.overall.detectable or 0.0) > (alone.overall.detectable or 0.0)
    assert alone.overall.corrected_p_value > 0.0


def test_tasks_with_other_seeds_are_compared_by_the_runs_that_both_have() -> None:
    """With 1,000 queries seed 1 gains .2 more than seed 2, which alone was run with all."""
    tasks = {**TASKS, "insurance-all": {**TASKS["insurance-all"], "seeds": {"pretraining": [2]}}}
    made = protocol(STARTS, tasks=tasks, seeds=[1, 2], claims={"it": SHRINKS})
    cells = []
    for result in results(made, {"bow": 0.1}, queries=50, seed_noise=0.0):
        if result.cell.start == "bow" and result.cell.pretraining_seed == 1:
            tests = {
                name: test.model_copy(
                    update={
                        "per_query": {m: dict.fromkeys(of, 1.0) for m, of in test.per_query.items()}
                    }
                )
                for name, test in result.tests.items()
            }
            result = result.model_copy(update={"tests": tests})
        cells.append(result)
    (verdict,) = verdicts(Outcomes(made, cells), ReportSettings())
    assert verdict.overall is not None
    assert abs(verdict.overall.difference) < 0.05
    assert verdict.complete


def test_one_run_of_a_start_leaves_the_seeds_of_others() -> None:
    claim = {**BEATS, "higher": {"starts": ["bow", "retromae"]}}

    def keep(result: CellResult) -> bool:
        return result.cell.start != "retromae" or result.cell.pretraining_seed == 1

    verdict = judged(claim, {"bow": 0.04, "retromae": 0.04}, keep, seed_noise=0.003)
    assert verdict.decision == "held"
    assert {found.without for found in verdict.findings} == {("retromae",)}
    assert not verdict.complete


def test_runs_of_different_seeds_are_not_compared() -> None:
    seeds = {"bow": 1, "mlm": 2}

    def keep(result: CellResult) -> bool:
        start = result.cell.start
        return result.cell.pretraining_seed == seeds.get(start, result.cell.pretraining_seed)

    verdict = judged(BEATS, {"bow": 0.04}, keep, seed_noise=0.003)
    assert (verdict.decision, verdict.overall) == ("undecided", None)


def _lacking(seeds: dict[str, int]) -> Any:
    return lambda result: seeds.get(result.cell.start) != result.cell.pretraining_seed


TWO = {**BEATS, "higher": {"starts": ["bow", "retromae"]}}


def test_starts_that_lack_different_seeds_do_not_leave_a_claim_open() -> None:
    """Seed 2 alone is common to all: without bow, mlm and retromae share two."""
    gains = {"bow": 0.04, "retromae": 0.04}
    verdict = judged(TWO, gains, _lacking({"bow": 1, "retromae": 3}), seed_noise=0.003)
    assert verdict.decision == "held"
    assert {found.without for found in verdict.findings} == {("bow",)}
    assert not verdict.complete
    whole = judged(TWO, gains, seed_noise=0.003)
    assert {found.without for found in whole.findings} == {()}


def test_starts_without_a_common_run_are_said_to_have_none() -> None:
    lacking = _lacking({"bow": 1, "retromae": 3, "mlm": 2})
    verdict = judged(TWO, {"bow": 0.04, "retromae": 0.04}, lacking)
    assert verdict.decision == "undecided"
    assert verdict.reason == "the compared starts have no run (pair of seeds) in common"
    assert not verdict.complete


def test_a_protocol_of_one_seed_loses_no_start() -> None:
    verdict = judged(TWO, {}, lambda result: result.cell.pretraining_seed == 1)
    assert {found.without for found in verdict.findings} == {()}


def test_a_missing_start_leaves_the_weight_of_a_baseline_alone() -> None:
    """Both sides are gains over none in one column, none of which differ."""
    claim = {
        "statement": "bow and mlm gain more than retromae",
        "higher": {"starts": ["bow", "mlm"], "over": ["none"]},
        "lower": {"starts": ["retromae"], "over": ["none"]},
    }

    def keep(result: CellResult) -> bool:
        return result.cell.start != "mlm"

    gains = {"bow": 0.15, "retromae": 0.15}
    verdict = judged(claim, gains, keep, noise=0.01)
    assert verdict.overall is not None
    assert abs(verdict.overall.difference) < 0.01
    assert verdict.findings[0].without == ("mlm",)
