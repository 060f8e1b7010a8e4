"""Held, did not hold, undecided: what the cells say about the claims of a protocol."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from isthmus.benchmarks.protocol.claims import Claim
from isthmus.benchmarks.report.claimed_places import lacks_runs, places, scored
from isthmus.benchmarks.report.comparisons import Estimate, estimate
from isthmus.benchmarks.report.cost_claims import CostFinding, Decision, cost_finding
from isthmus.benchmarks.report.outcomes import Outcomes
from isthmus.benchmarks.report.settings import ReportSettings
from isthmus.evaluation.significance import corrected


@dataclass(frozen=True)
class Finding:
    """One difference of a claim, at one place of the grid; without an estimate it is missing."""

    place: str
    estimate: Estimate | None
    corrected_p_value: float = 1.0
    interval: tuple[float, float] | None = None
    bound: float = math.inf
    """Upper end of the interval, at the confidence that Bonferroni leaves to one comparison."""
    family: int = 1
    """How many comparisons the p value and the bound are corrected for."""
    detectable: float | None = None
    without: tuple[str, ...] = ()
    """Starts that the claim names and that have no runs there yet, or too few."""
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
    costs: CostFinding | None = None
    """What the decision on a claim about costs rests on."""

    @property
    def complete(self) -> bool:
        """Whether every cell that the claim speaks of is there."""
        if self.costs is not None:
            return self.costs.complete
        return not any(
            found.estimate is None or found.without or found.partial for found in self.findings
        )


def rule(settings: ReportSettings) -> str:
    """How decisions are made, for the page."""
    both = settings.over == "both"
    over = "queries and pre-training seeds" if both else "queries"
    likewise = "" if settings.correction == "none" else ", corrected by Bonferroni,"
    alone = "Places of one seed are not averaged with others, and decide nothing alone. "
    return (
        "A claim is tested at every place of the grid that it names, and on average over them, by "
        f"two-sided t-tests over {over}, level {settings.alpha:g}, corrected for the number of "
        f"places, or of claims ({settings.correction}). Held: the average is significantly above "
        "0, and no place significantly below. Did not hold: the average is significantly below 0, "
        f"or its {settings.confidence:.0%} interval{likewise} ends below "
        f"{settings.smallest_effect:g}, the smallest difference that matters. Undecided: all else. "
        "Only runs (pairs of seeds) that all compared starts have count; a start with too few is "
        f"left out and named. {alone if both else ''}Intervals shown are uncorrected. A claim "
        "about cost holds if the ratio of the costs stays within its factor: for seconds, the "
        f"whole {settings.confidence:.0%} interval over pre-training seeds."
    )


def verdicts(outcomes: Outcomes, settings: ReportSettings) -> list[Verdict]:
    """A verdict for every claim of the protocol."""
    found = [
        _of_costs(name, claim, cost_finding(claim, outcomes, settings.confidence))
        if claim.cost is not None
        else _compared(name, claim, outcomes, settings)
        for name, claim in outcomes.protocol.claims.items()
    ]
    tested = {one.name: one.overall.corrected_p_value for one in found
              if one.overall and _decides(one.overall.estimate, settings)}  # fmt: skip
    p_values = dict(zip(tested, corrected([*tested.values()], settings.correction), strict=True))
    return [_decided(one, p_values, settings) if one.overall else one for one in found]


def _of_costs(name: str, claim: Claim, found: CostFinding) -> Verdict:
    return Verdict(name, claim, found.decision, found.reason, costs=found)


def _compared(name: str, claim: Claim, outcomes: Outcomes, settings: ReportSettings) -> Verdict:
    """What the cells say at every place of a claim and on average, not decided on yet."""
    found = [(place, *scored(terms, outcomes)) for place, terms in places(claim, outcomes.protocol)]
    known = [terms for _, terms, _ in found if terms]
    estimates = [estimate(outcomes, terms) for terms in known]
    effects = [one.chosen(settings) for one in estimates if one is not None]
    p_values = corrected([effect.p_value for effect in effects], settings.correction)
    tested = iter(zip(estimates, p_values, strict=True))
    findings = []
    for place, terms, without in found:
        partial = any(lacks_runs(term, outcomes) for term in terms or ())
        finding = Finding(place, None, without=without, partial=partial)
        if terms:
            compared, p_value = next(tested)
            finding = _measured(finding, compared, p_value, len(known), settings)
        findings.append(finding)
    apart = any(terms == [] for _, terms, _ in found)
    reason = (
        "the compared starts have no run (pair of seeds) in common"
        if apart
        else "no cell of one side is done"
    )
    draft = Verdict(name, claim, "undecided", reason, findings=tuple(findings))
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
        family=family,
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
        more = "judging the methods takes more seeds"
        return "undecided", f"one seed: {here} for these models{signs}; {more}"
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
