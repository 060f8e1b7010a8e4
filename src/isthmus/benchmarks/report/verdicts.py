"""Differences between starts: letters of tables, and what the cells say about claims."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from isthmus.benchmarks.protocol.claims import Claim, Selection
from isthmus.benchmarks.protocol.settings import Protocol
from isthmus.benchmarks.report.scores import Column, Outcomes, Scores, other_queries
from isthmus.benchmarks.report.settings import ReportSettings
from isthmus.evaluation.effects import Effect, crossed, paired_effect, summed
from isthmus.evaluation.significance import corrected, joined, letters_of

Decision = Literal["held", "did not hold", "undecided", "incomplete"]


@dataclass(frozen=True)
class Term:
    """A start in a column, with the weight that a comparison gives it."""

    weight: float
    start: str
    column: Column


@dataclass(frozen=True)
class Estimate:
    """A weighted sum of starts' scores: over queries and pre-training seeds.

    Of one seed, it is over queries alone, and speaks of these models rather than of the methods.
    """

    effect: Effect
    over_seeds: bool


@dataclass(frozen=True)
class Pair:
    """Two starts in one column: the first minus the second."""

    column: Column
    first: str
    second: str
    effect: Effect
    corrected_p_value: float
    significant: bool


@dataclass(frozen=True)
class TableComparisons:
    """All pairs of starts in all columns of one table, corrected as one family."""

    pairs: tuple[Pair, ...]
    beats: dict[tuple[str, Column], str]
    """The letters of the starts that a start is significantly better than, by column."""


@dataclass(frozen=True)
class Finding:
    """One difference of a claim, at one place of the grid or on average."""

    place: str
    effect: Effect
    corrected_p_value: float
    interval: tuple[float, float]
    bound: float
    """Upper end of the interval, at the confidence that Bonferroni leaves to one comparison."""
    family: int
    """How many comparisons the p value and the bound are corrected for."""
    detectable: float
    """The true difference that would have been found."""


@dataclass(frozen=True)
class Verdict:
    """The decision on one claim, in numbers and in a sentence."""

    name: str
    claim: Claim
    decision: Decision
    reason: str
    overall: Finding | None = None
    """The mean of the differences over the places."""
    findings: tuple[Finding, ...] = ()


def estimate(outcomes: Outcomes, terms: Sequence[Term]) -> Estimate | None:
    """The weighted sum of terms; None where one of them has no scores.

    Terms on one collection are compared query by query; collections are independent of each other.
    """
    found: list[tuple[Term, Scores]] = []
    for term in terms:
        scores = outcomes.scores(term.start, term.column)
        if scores is None:
            return None
        found.append((term, scores))
    queries: dict[str, tuple[str, ...]] = {}
    sums: dict[str, NDArray[np.float64]] = {}
    for term, scores in found:
        collection = term.column.collection
        if queries.setdefault(collection, scores.queries) != scores.queries:
            raise other_queries(f"{found[0][0].start!r} and {term.start!r}", term.column)
        sums[collection] = term.weight * scores.values.mean(axis=0) + sums.get(collection, 0.0)
    over_queries = summed([paired_effect(differences) for differences in sums.values()])
    both = _with_seeds(outcomes, found, over_queries)
    return Estimate(both or over_queries, both is not None)


def _with_seeds(
    outcomes: Outcomes, found: Sequence[tuple[Term, Scores]], over_queries: Effect
) -> Effect | None:
    """The effect over queries with the variance that seeds add; None where one is not known."""
    weights: dict[str, dict[Column, float]] = defaultdict(lambda: defaultdict(float))
    seeds: dict[str, int] = {}
    for term, scores in found:
        weights[term.start][term.column] += term.weight
        seeds[term.start] = min(len(scores.seeds), seeds.get(term.start, len(scores.seeds)))
    total, shared, freedom = 0.0, 0.0, math.inf
    for start, of_column in weights.items():
        scale = max(of_column.values(), key=abs)
        if scale:
            pattern = tuple((column, weight / scale) for column, weight in of_column.items())
            if (variance := outcomes.seed_variance(pattern)) is None:
                return None
            share = scale**2 / seeds[start]
            total += share * variance.pooled
            shared += share * variance.shared
            freedom = min(freedom, variance.freedom)
    return crossed(over_queries, total, shared, freedom)


def compare_starts(
    outcomes: Outcomes, columns: Sequence[Column], settings: ReportSettings
) -> TableComparisons:
    """Every start against every other in every column, corrected over all of them together.

    A start that lacks planned runs in a column is compared with none there.
    """
    compared = []
    for column in columns:
        whole = [start for start in outcomes.starts if outcomes.whole(start, column)]
        for first, second in combinations(whole, 2):
            terms = (Term(1.0, first, column), Term(-1.0, second, column))
            found = estimate(outcomes, terms)
            assert found is not None, "both have scores"
            compared.append((column, first, second, found.effect))
    raw = [effect.p_value for *_, effect in compared]
    pairs = tuple(
        Pair(*one, p_value, p_value < settings.alpha)
        for one, p_value in zip(compared, corrected(raw, settings.correction), strict=True)
    )
    beaten: dict[tuple[str, Column], set[str]] = defaultdict(set)
    for pair in pairs:
        if pair.significant:
            ahead = pair.effect.difference > 0
            better, worse = (pair.first, pair.second) if ahead else (pair.second, pair.first)
            beaten[better, pair.column].add(worse)
    names = letters_of(outcomes.starts)
    return TableComparisons(pairs, {key: joined(one, names) for key, one in beaten.items()})


def rule(settings: ReportSettings) -> str:
    """How decisions are made, for the page."""
    likewise = "" if settings.correction == "none" else ", corrected by Bonferroni,"
    return (
        "A claim is tested at every place of the grid that it names, and on average over them, by "
        f"two-sided t-tests over queries and pre-training seeds, level {settings.alpha:g}, "
        f"corrected for the number of places, or of claims ({settings.correction}). Held: the "
        "average is significantly above 0, and no place significantly below. Did not hold: the "
        f"average is significantly below 0, or its {settings.confidence:.0%} interval{likewise} "
        f"ends below {settings.smallest_effect:g}, the smallest difference that matters. "
        "Undecided: all else, and whatever one seed alone says. Incomplete: a planned run that "
        "the claim speaks of is not done. Intervals shown are uncorrected."
    )


def verdicts(outcomes: Outcomes, settings: ReportSettings) -> list[Verdict]:
    """A verdict for every claim of the protocol."""
    measured: dict[str, tuple[list[tuple[str, Estimate]], Estimate]] = {}
    lacking: dict[str, list[str]] = {}
    claims = outcomes.protocol.claims
    for name, claim in claims.items():
        found = list(places(claim, outcomes.protocol))
        terms = [term for _, inner in found for term in inner]
        missing = [term for term in terms if not outcomes.whole(term.start, term.column)]
        lacking[name] = list(dict.fromkeys(f"{one.start} ({one.column.kind}, {one.column.task})"
                                           for one in missing))  # fmt: skip
        if not missing and terms:
            mean = [replace(term, weight=term.weight / len(found)) for term in terms]
            here = [(place, _known(outcomes, inner)) for place, inner in found]
            measured[name] = here, _known(outcomes, mean)
    # One seed says nothing about methods: such claims are no part of the family.
    decides = {name: one for name, (_, one) in measured.items() if one.over_seeds}
    p_values = corrected([one.effect.p_value for one in decides.values()], settings.correction)
    of_claim = dict(zip(decides, p_values, strict=True))
    result = []
    for name, claim in claims.items():
        if name not in measured:
            missing_runs = ", ".join(lacking[name]) or "all of it"
            reason = f"planned runs are not done: {missing_runs}"
            result.append(Verdict(name, claim, "incomplete", reason))
            continue
        here, overall = measured[name]
        family = len(decides) if name in of_claim else 1
        p_value = of_claim.get(name, overall.effect.p_value)
        average = _finding("on average", overall.effect, p_value, family, settings)
        corrected_here = corrected([one.effect.p_value for _, one in here], settings.correction)
        findings = tuple(
            _finding(place, one.effect, p_value, len(here), settings)
            for (place, one), p_value in zip(here, corrected_here, strict=True)
        )
        decision, reason = _decide(average, findings, overall.over_seeds, settings)
        result.append(Verdict(name, claim, decision, reason, average, findings))
    return result


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
                if kind in protocol.kinds_of(task)
            ]
            for column in columns:
                run = protocol.tasks[column.task].starts or protocol.starts
                planned = [name for name in side.starts if name in run]
                weight = sign / max(len(planned), 1) / len(columns)
                terms += [Term(weight, name, column) for name in planned]
        if {term.weight > 0 for term in terms} == {True, False}:
            yield ", ".join(name for name in chosen if name) or "all", terms


def _spelt_out(side: Selection, protocol: Protocol) -> tuple[list[str], list[str], list[str]]:
    """The kinds, tasks and collections that a side means; "" for the tasks' own collections."""
    tuned = [name for name, task in protocol.tasks.items() if task.finetune]
    return side.kinds or list(protocol.kinds), side.tasks or tuned, side.collections or [""]


def _known(outcomes: Outcomes, terms: Sequence[Term]) -> Estimate:
    found = estimate(outcomes, terms)
    assert found is not None, "every term has scores"
    return found


def _finding(
    place: str, effect: Effect, p_value: float, family: int, settings: ReportSettings
) -> Finding:
    family = 1 if settings.correction == "none" else family
    return Finding(
        place,
        effect,
        p_value,
        effect.interval(settings.confidence),
        effect.interval(1 - (1 - settings.confidence) / family)[1],
        family,
        effect.detectable(settings.alpha / family, settings.power),
    )


def _decide(
    overall: Finding, findings: Sequence[Finding], over_seeds: bool, settings: ReportSettings
) -> tuple[Decision, str]:
    above = sum(one.effect.difference > 0 for one in findings)
    signs = f", above 0 at {above} of {len(findings)} places" if len(findings) > 1 else ""
    significant = overall.corrected_p_value < settings.alpha
    if not over_seeds:
        here = "significant" if significant else "not significant"
        more = "judging the methods takes more seeds"
        return "undecided", f"one seed: {here} for these models{signs}; {more}"
    if significant and overall.effect.difference < 0:
        return "did not hold", f"significantly the other way{signs}"
    if overall.bound < settings.smallest_effect:
        limit = f"{settings.smallest_effect:g}"
        return "did not hold", f"a difference of {limit} or more is outside the interval{signs}"
    lost = [one.place for one in findings
            if one.effect.difference < 0 and one.corrected_p_value < settings.alpha]  # fmt: skip
    if significant and not lost:
        return "held", f"significant{signs}"
    if significant:
        against = ", ".join(lost)
        return "undecided", f"significant on average, but significantly against it at {against}"
    if math.isinf(overall.detectable):
        return "undecided", f"not significant{signs}"
    return "undecided", (
        f"not significant{signs}; a true difference of {overall.detectable:.3f} would have been "
        f"found with {settings.power:.0%} power"
    )
