"""Differences between methods: letters of tables, and what the runs say about claims."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product
from typing import Literal

from isthmus.benchmarks.protocol.claims import Claim, Selection
from isthmus.benchmarks.protocol.settings import Protocol
from isthmus.benchmarks.report.scores import Column, Grid, Scores, Values, other_queries
from isthmus.benchmarks.report.settings import ReportSettings
from isthmus.evaluation.statistics import (
    Effect,
    crossed,
    holm,
    joined,
    letters_of,
    paired_effect,
    summed,
)

Decision = Literal["supported", "not supported", "inconclusive", "incomplete"]


@dataclass(frozen=True)
class Term:
    """A method in a column, with the weight that a comparison gives it."""

    weight: float
    method: str
    column: Column


@dataclass(frozen=True)
class Finding:
    """One difference of a claim: in one setting of the grid, or on average."""

    setting: str
    difference: float
    interval: tuple[float, float] | None
    """None where nothing is known of it."""
    p_value: float
    """Corrected for the settings of the claim, or for the number of claims."""


@dataclass(frozen=True)
class Verdict:
    """The decision on one claim, in numbers and in a sentence."""

    name: str
    claim: Claim
    decision: Decision
    reason: str
    overall: Finding | None = None
    """The mean of the differences over the settings."""
    findings: tuple[Finding, ...] = ()


def estimate(grid: Grid, terms: Sequence[Term]) -> tuple[Effect, bool]:
    """The weighted sum of terms, all of which have scores, and whether it is over seeds too.

    Of one seed, it is over queries alone, and speaks of these models rather than of the methods.

    Terms on one collection are compared query by query; collections are independent of each other.
    """
    found: list[tuple[Term, Scores]] = []
    queries: dict[str, tuple[str, ...]] = {}
    sums: dict[str, Values] = {}
    for term in terms:
        scores = grid.scores(term.method, term.column)
        assert scores is not None, "every term has scores"
        found.append((term, scores))
        collection = term.column.collection
        if queries.setdefault(collection, scores.queries) != scores.queries:
            raise other_queries(f"{terms[0].method!r} and {term.method!r}", term.column)
        sums[collection] = term.weight * scores.values.mean(axis=0) + sums.get(collection, 0.0)
    over_queries = summed([paired_effect(differences) for differences in sums.values()])
    both = _with_seeds(grid, found, over_queries)
    return both or over_queries, both is not None


def _with_seeds(
    grid: Grid, found: Sequence[tuple[Term, Scores]], over_queries: Effect
) -> Effect | None:
    """The effect over queries with the variance that seeds add; None where one is not known."""
    weights: dict[str, dict[Column, float]] = defaultdict(lambda: defaultdict(float))
    seeds: dict[str, int] = {}
    for term, scores in found:
        weights[term.method][term.column] += term.weight
        seeds[term.method] = min(len(scores.seeds), seeds.get(term.method, len(scores.seeds)))
    total, shared, freedom = 0.0, 0.0, math.inf
    for method, of_column in weights.items():
        scale = max(of_column.values(), key=abs)
        if scale:
            pattern = tuple((column, weight / scale) for column, weight in of_column.items())
            if (variance := grid.seed_variance(pattern)) is None:
                return None
            weight = scale**2 / seeds[method]
            total += weight * variance.pooled
            shared += weight * variance.shared
            freedom = min(freedom, variance.freedom)
    return crossed(over_queries, total, shared, freedom)


def letters(
    grid: Grid, columns: Sequence[Column], settings: ReportSettings
) -> dict[tuple[str, Column], str]:
    """The letters of the methods that a method is significantly better than, by column.

    Every method is compared with every other in every column, corrected over all of them; one that
    lacks planned runs in a column with none there.
    """
    compared = []
    for column in columns:
        whole = [method for method in grid.protocol.methods if grid.whole(method, column)]
        for first, second in combinations(whole, 2):
            terms = Term(1.0, first, column), Term(-1.0, second, column)
            compared.append((column, first, second, estimate(grid, terms)[0]))
    beaten: dict[tuple[str, Column], set[str]] = defaultdict(set)
    p_values = holm([effect.p_value for *_, effect in compared])
    for (column, first, second, effect), p_value in zip(compared, p_values, strict=True):
        if p_value < settings.alpha:
            better, worse = (first, second) if effect.difference > 0 else (second, first)
            beaten[better, column].add(worse)
    names = letters_of(grid.protocol.methods)
    return {key: joined(one, names) for key, one in beaten.items()}


def rule(settings: ReportSettings) -> str:
    """How differences are tested and claims are decided, for the page."""
    return (
        "Scores are means over seeds of means over all judged queries; ± is the standard deviation "
        "from pre-training seed to pre-training seed, each the mean of its fine-tuning seeds. "
        "Differences are tested by paired two-sided t-tests. To the variance over queries, of "
        "scores averaged over seeds, comes what seeds add to it, pooled over all methods of a "
        "column (quasi-F, Clark 1973; Satterthwaite's degrees of freedom). So they speak of the "
        "methods, on other queries and with other seeds; in a column of one seed, of its models "
        "alone. All pairs of methods in all columns of a table are one family (Holm), all settings "
        f"of a claim another, and the averages of all claims a third. The level is "
        f"{settings.alpha:g}; intervals are uncorrected. A claim is supported if the average of "
        "its settings is significantly above 0, and none is significantly below. It is not "
        "supported if the average is significantly below 0, or its interval ends below "
        f"{settings.smallest_effect:g}, the smallest difference that matters. It is inconclusive "
        "in all other cases, and whatever one seed alone says; and incomplete if one of its "
        "planned runs is not done."
    )


def verdicts(grid: Grid, settings: ReportSettings) -> list[Verdict]:
    """A verdict for every claim of the protocol."""
    measured: dict[str, tuple[dict[str, Effect], Effect, bool]] = {}
    lacking: dict[str, list[str]] = {}
    claims = grid.protocol.claims
    for name, claim in claims.items():
        found = list(compared_settings(claim, grid.protocol))
        terms = [term for _, inner in found for term in inner]
        missing = [term for term in terms if not grid.whole(term.method, term.column)]
        lacking[name] = [f"{one.method} ({one.column.retriever}, {one.column.task})"
                         for one in missing]  # fmt: skip
        if not missing and terms:
            mean = [replace(term, weight=term.weight / len(found)) for term in terms]
            here = {setting: estimate(grid, inner)[0] for setting, inner in found}
            measured[name] = here, *estimate(grid, mean)
    # One seed says nothing about methods: such claims are no part of the family.
    p_values = {name: one.p_value for name, (_, one, over_seeds) in measured.items() if over_seeds}
    corrected = dict(zip(p_values, holm([*p_values.values()]), strict=True))
    result = []
    for name, claim in claims.items():
        if name not in measured:
            missing_runs = ", ".join(dict.fromkeys(lacking[name])) or "all of it"
            reason = f"planned runs are not done: {missing_runs}"
            result.append(Verdict(name, claim, "incomplete", reason))
            continue
        here, overall, over_seeds = measured[name]
        p_value = corrected.get(name, overall.p_value)
        average = _finding("on average", overall, p_value, settings)
        of_settings = zip(here.items(), holm([one.p_value for one in here.values()]), strict=True)
        findings = tuple(_finding(*one, p_value, settings) for one, p_value in of_settings)
        decision, reason = _decide(average, findings, over_seeds, settings)
        result.append(Verdict(name, claim, decision, reason, average, findings))
    return result


def compared_settings(claim: Claim, protocol: Protocol) -> Iterator[tuple[str, list[Term]]]:
    """The comparisons that a claim stands for, each with a name.

    One for every retriever, task and collection that both sides name; where the sides differ (more
    queries on one, another retriever on the other), each side is averaged over its own.
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
                Column(retriever, task, collection or protocol.tasks[task].collection, measure)
                for retriever, task, collection in product(*inner)
                if retriever in protocol.retrievers_of(task)
            ]
            for column in columns:
                run = protocol.methods_of(column.task)
                planned = [name for name in side.methods if name in run]
                weight = sign / max(len(planned), 1) / len(columns)
                terms += [Term(weight, name, column) for name in planned]
        if {term.weight > 0 for term in terms} == {True, False}:
            yield ", ".join(name for name in chosen if name) or "all", terms


def _spelt_out(side: Selection, protocol: Protocol) -> tuple[list[str], list[str], list[str]]:
    """The retrievers, tasks and collections that a side means; "" for the tasks' own."""
    tuned = [name for name, task in protocol.tasks.items() if task.finetune]
    return (
        side.retrievers or list(protocol.retrievers),
        side.tasks or tuned,
        side.collections or [""],
    )


def _finding(setting: str, effect: Effect, p_value: float, settings: ReportSettings) -> Finding:
    interval = effect.interval(1 - settings.alpha)
    known = interval if math.isfinite(interval[0]) else None
    return Finding(setting, effect.difference, known, p_value)


def _decide(
    overall: Finding, findings: Sequence[Finding], over_seeds: bool, settings: ReportSettings
) -> tuple[Decision, str]:
    above = sum(one.difference > 0 for one in findings)
    signs = f", above 0 in {above} of {len(findings)} settings" if len(findings) > 1 else ""
    significant = overall.p_value < settings.alpha
    if not over_seeds:
        here = "significant" if significant else "not significant"
        more = "judging the methods takes more seeds"
        return "inconclusive", f"one seed: {here} for these models{signs}; {more}"
    if significant and overall.difference < 0:
        return "not supported", f"significantly the other way{signs}"
    if overall.interval and overall.interval[1] < settings.smallest_effect:
        limit = f"{settings.smallest_effect:g}"
        return "not supported", f"a difference of {limit} or more is outside the interval{signs}"
    if not significant:
        return "inconclusive", f"not significant{signs}"
    lost = [one.setting for one in findings
            if one.difference < 0 and one.p_value < settings.alpha]  # fmt: skip
    if lost:
        against = ", ".join(lost)
        return "inconclusive", f"significant on average, but significantly against it in {against}"
    return "supported", f"significant{signs}"
