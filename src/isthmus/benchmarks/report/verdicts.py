"""Held, did not hold, undecided: what the cells say about the claims of a protocol."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from statistics import fmean
from typing import Literal

from isthmus.benchmarks.protocol.claims import Claim, Selection
from isthmus.benchmarks.protocol.settings import Protocol
from isthmus.benchmarks.report.comparisons import Estimate, Term, estimate, with_common_runs
from isthmus.benchmarks.report.outcomes import Column, Outcomes
from isthmus.benchmarks.report.settings import ReportSettings
from isthmus.evaluation.effects import paired_effect
from isthmus.evaluation.significance import corrected

Decision = Literal["held", "did not hold", "undecided"]
_Costs = dict[tuple[str, str, int, int], list[float]]  # by kind, task and seeds


@dataclass(frozen=True)
class Finding:
    """One difference of a claim, at one place of the grid; without an estimate it is missing."""

    place: str
    estimate: Estimate | None
    corrected_p_value: float = 1.0
    interval: tuple[float, float] | None = None
    bound: float = math.inf
    """Where an interval ends that is corrected for the number of comparisons, too."""
    detectable: float | None = None
    without: tuple[str, ...] = ()
    """Starts that the claim names and that have no scores there yet."""
    partial: bool = False
    """Whether runs of the others are missing too."""

    @property
    def difference(self) -> float:
        """How far the side is ahead that is claimed to be higher."""
        assert self.estimate is not None
        return self.estimate.queries.difference


@dataclass(frozen=True)
class Verdict:
    """The decision on one claim, in numbers and in a sentence."""

    name: str
    claim: Claim
    decision: Decision
    reason: str
    overall: Finding | None = None
    """The mean of the differences over the places that have scores, of several seeds if any do."""
    findings: tuple[Finding, ...] = ()
    costs: tuple[float, float] | None = None
    """The mean costs of the side claimed to be higher and of the other."""

    @property
    def complete(self) -> bool:
        """Whether every cell that the claim speaks of is there."""
        return not any(
            found.estimate is None or found.without or found.partial for found in self.findings
        )


def rule(settings: ReportSettings) -> str:
    """How decisions are made, for the page."""
    over = "queries and pre-training seeds" if settings.over == "both" else "queries"
    return (
        "A claim is tested at every place of the grid that it names, and on average over them: "
        f"two-sided t-tests over {over}, level {settings.alpha:g}, those of the averages corrected "
        "for the number of claims, those of a claim's places for theirs "
        f"({settings.correction}). Held: the average is significantly above 0, "
        "and no place significantly below. Did not hold: the average is significantly below 0, or "
        f"its {settings.confidence:.0%} interval, corrected likewise, ends below "
        f"{settings.smallest_effect:g}, the smallest difference that matters; intervals that are "
        "shown are of one comparison alone. Undecided: all else, with the average that would have "
        f"been found with {settings.power:.0%} power; and what one seed alone says. Places "
        "with one seed are shown, but not averaged with places that have more; at "
        "each place, the runs (pairs of seeds) count that all compared starts have. A claim about "
        "cost holds if the ratio of the costs stays within its factor: for seconds, the whole "
        f"{settings.confidence:.0%} interval over pre-training seeds."
    )


def verdicts(outcomes: Outcomes, settings: ReportSettings) -> list[Verdict]:
    """A verdict for every claim of the protocol."""
    found = [
        _cost_verdict(name, claim, outcomes, settings)
        if claim.cost is not None
        else _compared(name, claim, outcomes, settings)
        for name, claim in outcomes.protocol.claims.items()
    ]
    tested = {one.name: one.overall.corrected_p_value for one in found
              if one.overall and _decides(one.overall.estimate, settings)}  # fmt: skip
    p_values = dict(zip(tested, corrected([*tested.values()], settings.correction), strict=True))
    return [_decided(one, p_values, settings) if one.overall else one for one in found]


def _compared(name: str, claim: Claim, outcomes: Outcomes, settings: ReportSettings) -> Verdict:
    """What the cells say at every place of a claim and on average, not decided on yet."""
    found = [
        (place, *_scored(terms, outcomes)) for place, terms in places(claim, outcomes.protocol)
    ]
    known = [terms for _, terms, _ in found if terms]
    estimates = [estimate(outcomes, terms) for terms in known]
    effects = [one.chosen(settings) for one in estimates if one is not None]
    p_values = corrected([effect.p_value for effect in effects], settings.correction)
    tested = iter(zip(estimates, p_values, strict=True))
    findings = []
    for place, terms, without in found:
        partial = any(_lacks_runs(term, outcomes) for term in terms)
        finding = Finding(place, None, without=without, partial=partial)
        if terms:
            compared, p_value = next(tested)
            finding = _measured(finding, compared, p_value, len(known), settings)
        findings.append(finding)
    draft = Verdict(
        name, claim, "undecided", "no cell that it speaks of is done", findings=tuple(findings)
    )
    if not known:
        return draft
    counted = [terms for terms, one in zip(known, estimates, strict=True)
               if _decides(one, settings)] or known  # fmt: skip
    share = 1.0 / len(counted)
    average = [replace(term, weight=share * term.weight) for terms in counted for term in terms]
    compared = estimate(outcomes, average)
    assert compared is not None, "every term has scores"
    p_value = compared.chosen(settings).p_value
    return replace(
        draft, overall=_measured(Finding("on average", None), compared, p_value, 1, settings)
    )


def _decided(verdict: Verdict, p_values: Mapping[str, float], settings: ReportSettings) -> Verdict:
    """The verdict, with the p value of its average corrected for the number of claims."""
    assert verdict.overall is not None
    overall = verdict.overall
    if (p_value := p_values.get(verdict.name)) is not None:
        overall = _measured(overall, overall.estimate, p_value, len(p_values), settings)
    decision, reason = _decide(overall, verdict.findings, settings)
    return replace(verdict, decision=decision, reason=reason, overall=overall)


def _measured(
    finding: Finding,
    compared: Estimate | None,
    p_value: float,
    family: int,
    settings: ReportSettings,
) -> Finding:
    assert compared is not None
    effect = compared.chosen(settings)
    family = 1 if settings.correction == "none" else family
    return replace(
        finding,
        estimate=compared,
        corrected_p_value=p_value,
        interval=effect.interval(settings.confidence),
        bound=effect.interval(1 - (1 - settings.confidence) / family)[1],
        detectable=effect.detectable(settings.alpha / family, settings.power),
    )


def _decide(
    overall: Finding, findings: Sequence[Finding], settings: ReportSettings
) -> tuple[Decision, str]:
    every = [one for one in findings if one.estimate is not None]
    known = [one for one in every if _decides(one.estimate, settings)] or every
    lost = [one for one in known if one.difference < 0 and one.corrected_p_value < settings.alpha]
    above = sum(one.difference > 0 for one in known)
    signs = f", above 0 at {above} of {len(known)} places" if len(every) > 1 else ""
    if len(known) < len(every):
        signs += " with several seeds"
    significant = overall.corrected_p_value < settings.alpha
    assert overall.estimate is not None
    if not _decides(overall.estimate, settings):
        here = "significant" if significant else "not significant"
        return "undecided", f"one seed: {here} for these models{signs}; of the methods, more decide"
    if significant and overall.difference < 0:
        return "did not hold", f"significantly the other way{signs}"
    if overall.bound < settings.smallest_effect:
        limit = f"{settings.smallest_effect:g}"
        return "did not hold", f"a difference of {limit} or more is outside the interval{signs}"
    if significant and not lost:
        return "held", f"significant{signs}"
    if significant:
        against = ", ".join(one.place for one in lost)
        return "undecided", f"significant on average, but significantly against it at {against}"
    reach = overall.detectable
    if reach is None or math.isinf(reach):
        return "undecided", f"not significant{signs}"
    return "undecided", (
        f"not significant{signs}; a true difference of {reach:.3f} would have been found with "
        f"{settings.power:.0%} power"
    )


def _decides(compared: Estimate | None, settings: ReportSettings) -> bool:
    """Whether a comparison says anything about the methods, rather than about these models."""
    return compared is not None and (compared.knows_seeds or settings.over != "both")


def _scored(terms: Sequence[Term], outcomes: Outcomes) -> tuple[list[Term], tuple[str, ...]]:
    """The terms of starts with every score, reweighted to the sum of all; the starts left out.

    A start without a score on one side is left out on the other too, so that both sides average
    over the same starts; so is one of a single seed where others have several. No term is left
    where a whole side has no scores.
    """
    runs: dict[str, frozenset[tuple[int, int]]] = {}
    for term in terms:
        scores = outcomes.scores(term.start, term.column)
        here = frozenset() if scores is None else scores.runs
        runs[term.start] = here & runs.get(term.start, here)
    lacking = {start for start, pairs in runs.items() if not pairs}
    alone = {start for start, pairs in runs.items() if len({seed for seed, _ in pairs}) == 1}
    whole = _weights(terms)
    if alone and _weights(_without(terms, lacking | alone)).keys() == whole.keys():
        lacking |= alone  # one seed of a start would leave no more of all others
    there, missing = _without(terms, lacking), tuple(sorted(lacking))
    left = _weights(there)
    if whole.keys() != left.keys():
        return [], missing
    kept = [
        replace(term, weight=term.weight * whole[key] / left[key])
        for term in there
        for key in [(term.column, term.weight > 0)]
    ]
    return with_common_runs(outcomes, kept), missing


def _without(terms: Sequence[Term], starts: set[str]) -> list[Term]:
    return [term for term in terms if term.start not in starts]


def _lacks_runs(term: Term, outcomes: Outcomes) -> bool:
    scores = outcomes.scores(term.start, replace(term.column, runs=None))
    return scores is not None and len(scores.runs) < outcomes.runs(term.column)


def _weights(terms: Sequence[Term]) -> dict[tuple[Column, bool], float]:
    sums: dict[tuple[Column, bool], float] = {}
    for term in terms:
        key = term.column, term.weight > 0
        sums[key] = sums.get(key, 0.0) + term.weight
    return sums


def places(claim: Claim, protocol: Protocol) -> Iterator[tuple[str, list[Term]]]:
    """The comparisons that a claim stands for, each with a name.

    One for every kind, task and collection that both sides name; where the sides differ (more
    queries on one, another kind on the other), each side is averaged over its own.
    """
    measure = claim.measure or protocol.measures[0]
    higher, lower = (_spelt_out(side, protocol) for side in (claim.higher, claim.lower))
    shared = [one if one == other else [None] for one, other in zip(higher, lower, strict=True)]
    for chosen in product(*shared):
        terms: list[Term] = []
        for sign, side, names in ((1.0, claim.higher, higher), (-1.0, claim.lower, lower)):
            inner = [
                [one] if one is not None else own for one, own in zip(chosen, names, strict=True)
            ]
            columns = [
                Column(kind, task, collection or protocol.tasks[task].collection, measure)
                for kind, task, collection in product(*inner)
                if kind in (protocol.tasks[task].kinds or protocol.kinds)
            ]
            terms += _side(sign, side, columns, protocol)
        if terms and {term.weight > 0 for term in terms} == {True, False}:
            yield ", ".join(name for name in chosen if name) or "all", terms


def _spelt_out(side: Selection, protocol: Protocol) -> tuple[list[str], list[str], list[str]]:
    tuned = [name for name, task in protocol.tasks.items() if task.finetune]
    return side.kinds or list(protocol.kinds), side.tasks or tuned, side.collections or [""]


def _side(
    sign: float, side: Selection, columns: Sequence[Column], protocol: Protocol
) -> list[Term]:
    terms = []
    for column in columns:
        run = protocol.tasks[column.task].starts or protocol.starts
        for weight, names in ((sign, side.starts), (-sign, side.over)):
            planned = [name for name in names if name in run]
            terms += [Term(weight / len(planned) / len(columns), name, column) for name in planned]
    return terms


def _costs(side: Selection, cost: str, outcomes: Outcomes) -> _Costs:
    """What the cells of a side cost, by kind, task and seeds."""
    kinds, tasks, _ = _spelt_out(side, outcomes.protocol)
    found: _Costs = {}
    for result in outcomes.cells:
        cell, value = result.cell, getattr(result.cost, cost)
        chosen = cell.start in side.starts and cell.kind in kinds and cell.task in tasks
        if result.status == "done" and chosen and value is not None:
            place = (cell.kind, cell.task, cell.pretraining_seed, cell.finetuning_seed)
            found.setdefault(place, []).append(value)
    return found


def _cost_verdict(name: str, claim: Claim, outcomes: Outcomes, settings: ReportSettings) -> Verdict:
    assert claim.cost is not None
    sides = [_costs(side, claim.cost, outcomes) for side in (claim.higher, claim.lower)]
    alike = sides[0].keys() & sides[1].keys()
    if alike:  # the costs of one task are not compared with those of another
        sides = [{place: costs for place, costs in side.items() if place in alike}
                 for side in sides]  # fmt: skip
    if not all(sides):
        return Verdict(name, claim, "undecided", "no cell of one side has this cost")
    higher, lower = (fmean(map(fmean, _by_seed(side).values())) for side in sides)
    ratio = f"{lower / higher:.2f}" if higher else "infinitely many"
    what = claim.cost.replace("_", " ")
    names = [", ".join(side.starts) for side in (claim.lower, claim.higher)]
    reason = f"{what}: {names[0]} {lower:,.4g} against {names[1]} {higher:,.4g}, {ratio} times"
    low = high = lower / higher if higher else math.inf
    sure = True
    if claim.cost.endswith("_seconds"):  # which differ from run to run
        low, high, seeds = _interval(sides[0], sides[1], settings.confidence)
        sure = seeds > 1
        reason += f", [{low:.2f}, {high:.2f}] over {seeds} seeds" if sure else ", one seed"
    reason += f"; allowed: {claim.factor:g}"
    decision: Decision = "undecided"
    if sure and not low <= claim.factor < high:
        decision = "held" if high <= claim.factor else "did not hold"
    return Verdict(name, claim, decision, reason, costs=(higher, lower))


def _interval(higher: _Costs, lower: _Costs, confidence: float) -> tuple[float, float, int]:
    """Where the ratio of lower to higher lies, by the logarithm over so many seeds."""
    logs = [
        {seed: math.log(max(fmean(of), 1e-9)) for seed, of in _by_seed(side).items()}
        for side in (lower, higher)
    ]
    common = sorted(logs[0].keys() & logs[1].keys())
    differences = [logs[0][seed] - logs[1][seed] for seed in common]
    if len(differences) < 2:
        ratio = math.exp(fmean(differences)) if differences else math.nan
        return ratio, ratio, len(common)
    low, high = paired_effect(differences).interval(confidence)
    return math.exp(low), math.exp(high), len(common)


def _by_seed(side: _Costs) -> dict[int, list[float]]:
    """Costs by pre-training seed: cells share a pre-training, however many are done."""
    found: dict[int, list[float]] = defaultdict(list)
    for (_, _, seed, _), costs in side.items():
        found[seed] += costs
    return found
