"""Claims about costs: of the seeds and places that both sides have, and what is missing is said."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.benchmarks.made_cells import protocol, results, with_cost

from isthmus.benchmarks.protocol.cells import Cell, CellResult
from isthmus.benchmarks.report.outcomes import Outcomes
from isthmus.benchmarks.report.settings import ReportSettings
from isthmus.benchmarks.report.verdicts import Verdict, verdicts

STARTS = ["none", "mlm", "bow", "retromae"]
FREE: dict[str, Any] = {
    "statement": "bow is nearly free",
    "higher": {"starts": ["mlm"]},
    "lower": {"starts": ["bow"]},
    "cost": "pretraining_seconds",
    "factor": 1.05,
}


@pytest.mark.parametrize(
    ("seconds", "spread", "seeds", "decision"),
    [
        (104.0, 0.2, [1, 2, 3], "held"),
        (120.0, 0.5, [1, 2, 3], "did not hold"),
        (104.0, 0.0, [1, 2], "held"),
        (104.0, 9.0, [1, 2, 3], "undecided"),  # as far apart as runs that share a card
        (120.0, 0.0, [1], "undecided"),
    ],
)
def test_costs_are_compared_with_their_bound(
    seconds: float, spread: float, seeds: list[int], decision: str
) -> None:
    made = protocol(STARTS, claims={"free": FREE}, seeds=seeds)
    middle = (len(seeds) + 1) / 2

    def took(result: CellResult) -> float:
        of_seed = (result.cell.pretraining_seed - middle) * spread
        return 100.0 if result.cell.start == "mlm" else seconds + of_seed

    cells = [
        with_cost(result, pretraining_seconds=took(result))
        for result in results(made, {}, queries=5)
        if result.cell.start in ("mlm", "bow")
    ]
    (verdict,) = verdicts(Outcomes(made, cells), ReportSettings())
    assert verdict.decision == decision
    assert f"bow {seconds:g} against mlm 100" in verdict.reason
    assert (", one seed; allowed" in verdict.reason) == (len(seeds) == 1)


def of_costs(claim: dict[str, Any], cost: Any, **more: Any) -> Verdict:
    """The verdict on costs that a function gives for every cell; None where it is missing."""
    made = protocol(STARTS, more.pop("kinds", ("dense",)), claims={"it": claim})
    cells = [
        with_cost(result, **{claim["cost"]: value})
        for result in results(made, {}, queries=2)
        if (value := cost(result.cell)) is not None
    ]
    (verdict,) = verdicts(Outcomes(made, cells), ReportSettings())
    return verdict


def test_costs_are_those_of_the_seeds_of_both_sides() -> None:
    """Seed 3, which bow alone has, was slow: with it bow would be twice as dear."""

    def took(cell: Cell) -> float | None:
        if cell.start == "bow":
            return 400.0 if cell.pretraining_seed == 3 else 101.0
        return 100.0 if cell.start == "mlm" and cell.pretraining_seed < 3 else None

    verdict = of_costs(FREE, took)
    assert verdict.decision == "held"
    assert "bow 101 against mlm 100, 1.01 times, [1.01, 1.01] over 2 seeds" in verdict.reason
    assert not verdict.complete


def test_costs_are_those_of_the_places_that_all_starts_of_a_side_have() -> None:
    """medicine-1000 takes a tenth, and retromae has no cell of it."""
    claim = {**FREE, "lower": {"starts": ["retromae", "bow"]}}

    def took(cell: Cell) -> float | None:
        if (cell.start, cell.task) == ("retromae", "medicine-1000"):
            return None
        return 10.0 if cell.task == "medicine-1000" else 100.0

    verdict = of_costs(claim, took)
    assert (verdict.decision, verdict.complete) == ("held", False)
    assert "retromae, bow 100 against mlm 100" in verdict.reason


def test_costs_of_other_seeds_are_not_compared() -> None:
    def took(cell: Cell) -> float | None:
        return 100.0 if cell.pretraining_seed == {"bow": 1, "mlm": 2}.get(cell.start) else None

    verdict = of_costs(FREE, took)
    assert verdict.decision == "undecided"
    assert verdict.reason == "the starts have no cell with the same seeds and this cost"


def test_costs_of_kinds_are_compared_by_the_seeds_of_both() -> None:
    claim = {
        "statement": "sparse takes half as long", "cost": "index_seconds", "factor": 0.6,
        "higher": {"starts": ["bow"], "kinds": ["dense"]},
        "lower": {"starts": ["bow"], "kinds": ["sparse"]},
    }  # fmt: skip

    def took(cell: Cell) -> float | None:
        if cell.kind == "sparse":
            return 5.0 * cell.pretraining_seed
        return 10.0 * cell.pretraining_seed if cell.pretraining_seed > 1 else None

    verdict = of_costs(claim, took, kinds=("dense", "sparse"))
    assert verdict.decision == "held"
    assert "bow 12.5 against bow 25, 0.50 times, [0.50, 0.50] over 2 seeds" in verdict.reason


@pytest.mark.parametrize(("bow", "decision"), [(0.0, "held"), (1.0, "did not hold")])
def test_what_costs_nothing_is_not_dearer_than_nothing(bow: float, decision: str) -> None:
    claim = {**FREE, "cost": "pretraining_tokens"}
    verdict = of_costs(claim, lambda cell: bow if cell.start == "bow" else 0.0)
    assert verdict.decision == decision
    assert ("times" in verdict.reason) == bool(bow)
    assert verdict.complete
