"""Claims about costs: what two sides cost where all of their starts have a cost."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from isthmus.benchmarks.protocol.claims import Claim, Selection
from isthmus.benchmarks.report.claimed_places import spelt_out
from isthmus.benchmarks.report.outcomes import Outcomes
from isthmus.evaluation.effects import paired_effect

Decision = Literal["held", "did not hold", "undecided"]
_Place = tuple[str, str, int, int]  # kind, task and seeds
_Costs = dict[_Place, list[float]]
_EXPONENT = 700.0  # the highest that floats hold, nearly


@dataclass(frozen=True)
class CostFinding:
    """The decision on a claim about costs, its reason, and what it rests on."""

    decision: Decision
    reason: str
    complete: bool
    """Whether every cell that the claim speaks of is done."""
    costs: tuple[float, float] | None = None
    """The mean costs of the side claimed to be higher and of the other."""


def cost_finding(claim: Claim, outcomes: Outcomes, confidence: float) -> CostFinding:
    """What the cells say about a claim that one side costs at most so many times the other."""
    assert claim.cost is not None
    complete = _complete(claim, outcomes)
    known = [_by_start(side, claim.cost, outcomes) for side in (claim.higher, claim.lower)]
    if not all(known):
        return CostFinding("undecided", "no cell of one side has this cost", complete)
    both = _alike(*map(_where_all_are, known))
    if both is None:
        reason = "the starts have no cell with the same seeds and this cost"
        return CostFinding("undecided", reason, complete)
    by_seed = [_by_seed(side) for side in both]
    higher, lower = (fmean(side.values()) for side in by_seed)
    what = claim.cost.replace("_", " ")
    names = [", ".join(side) for side in reversed(known)]
    reason = f"{what}: {names[0]} {lower:,.4g} against {names[1]} {higher:,.4g}"
    if higher or lower:
        reason += f", {f'{lower / higher:.2f}' if higher else 'infinitely many'} times"
    allowed = f"; allowed: {claim.factor:g}"
    costs = higher, lower
    if not claim.cost.endswith("_seconds"):  # the same from run to run
        held = lower <= claim.factor * higher
        return CostFinding("held" if held else "did not hold", reason + allowed, complete, costs)
    seeds = len(by_seed[0])
    if seeds < 2:
        return CostFinding("undecided", f"{reason}, one seed{allowed}", complete, costs)
    low, high = _interval(by_seed[0], by_seed[1], confidence)
    decision: Decision = "undecided"
    if not low <= claim.factor < high:
        decision = "held" if high <= claim.factor else "did not hold"
    reason += f", [{low:.2f}, {high:.2f}] over {seeds} seeds{allowed}"
    return CostFinding(decision, reason, complete, costs)


def _complete(claim: Claim, outcomes: Outcomes) -> bool:
    done = {result.cell.name for result in outcomes.cells if result.status == "done"}
    for side in (claim.higher, claim.lower):
        kinds, tasks, _ = spelt_out(side, outcomes.protocol)
        for cell in outcomes.protocol.cells():
            named = cell.start in side.starts and cell.kind in kinds and cell.task in tasks
            if named and cell.name not in done:
                return False
    return True


def _by_start(side: Selection, cost: str, outcomes: Outcomes) -> dict[str, dict[_Place, float]]:
    """What the cells of a side cost, of every start that has any."""
    kinds, tasks, _ = spelt_out(side, outcomes.protocol)
    found: dict[str, dict[_Place, float]] = {}
    for result in outcomes.cells:
        cell, value = result.cell, getattr(result.cost, cost)
        chosen = cell.start in side.starts and cell.kind in kinds and cell.task in tasks
        if result.status == "done" and chosen and value is not None:
            place = (cell.kind, cell.task, cell.pretraining_seed, cell.finetuning_seed)
            found.setdefault(cell.start, {})[place] = value
    return {start: found[start] for start in side.starts if start in found}


def _where_all_are(side: Mapping[str, Mapping[_Place, float]]) -> _Costs:
    """The costs at places that all starts of a side have, so that none is more at one."""
    shared = set.intersection(*({*costs} for costs in side.values()))
    return {place: [costs[place] for costs in side.values()] for place in shared}


def _alike(higher: _Costs, lower: _Costs) -> tuple[_Costs, _Costs] | None:
    """Both sides at the places of both, or at least of the same seeds; None where none are.

    The costs of one task are not compared with those of another that the claim names for both.
    """
    places = higher.keys() & lower.keys()
    if not places:
        seeds = {seed for *_, seed, _ in higher} & {seed for *_, seed, _ in lower}
        places = {one for one in higher.keys() | lower.keys() if one[2] in seeds}
    both = tuple({one: side[one] for one in side if one in places} for side in (higher, lower))
    return (both[0], both[1]) if all(both) else None


def _by_seed(side: _Costs) -> dict[int, float]:
    """Mean costs by pre-training seed: cells share a pre-training, however many are done."""
    found: dict[int, list[float]] = defaultdict(list)
    for (_, _, seed, _), costs in side.items():
        found[seed] += costs
    return {seed: fmean(costs) for seed, costs in found.items()}


def _interval(
    higher: Mapping[int, float], lower: Mapping[int, float], confidence: float
) -> tuple[float, float]:
    """Confidence interval of lower / higher, from log ratios paired by pre-training seed."""
    ratios = [math.log(max(lower[seed], 1e-9) / max(higher[seed], 1e-9)) for seed in higher]
    low, high = paired_effect(ratios).interval(confidence)
    return math.exp(low), math.exp(min(high, _EXPONENT))
