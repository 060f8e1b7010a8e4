"""Differences between starts: over queries, over seeds, and over both at once."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from isthmus.benchmarks.report.outcomes import Column, Outcomes, Scores, SeedVariance, other_queries
from isthmus.benchmarks.report.settings import ReportSettings
from isthmus.evaluation.effects import Effect, crossed, paired_effect, summed
from isthmus.evaluation.significance import corrected, joined, letters_of


@dataclass(frozen=True)
class Term:
    """A start in a column, with the weight that a comparison gives it."""

    weight: float
    start: str
    column: Column
    part: tuple[float, float] = (0.0, 0.0)
    """Which of a claim's sums it is in: the sign of its side, and its own there."""


@dataclass(frozen=True)
class Estimate:
    """A weighted sum of starts' scores, as three tests see it.

    `queries` takes the models as they are, averaged over seeds, and asks about other queries;
    `seeds` takes the queries as they are, and asks about other pre-training seeds; `both` asks
    about other queries and other seeds. Without a second seed, `both` is `queries`.
    """

    queries: Effect
    seeds: Effect
    both: Effect
    number_of_queries: int
    number_of_seeds: int

    @property
    def knows_seeds(self) -> bool:
        """Whether anything is known about what other seeds would give.

        Of these starts, or of others in the same columns, whose variance is pooled.
        """
        return self.number_of_seeds > 1 or self.both is not self.queries

    def chosen(self, settings: ReportSettings) -> Effect:
        """The effect that the settings judge by."""
        return self.both if settings.over == "both" else self.queries


@dataclass(frozen=True)
class Pair:
    """Two starts in one column: the first minus the second."""

    column: Column
    first: str
    second: str
    estimate: Estimate
    p_value: float
    corrected_p_value: float
    significant: bool


@dataclass(frozen=True)
class TableComparisons:
    """All pairs of starts in all columns of one table, corrected as one family."""

    pairs: tuple[Pair, ...]
    beats: dict[tuple[str, Column], str]
    """The letters of the starts that a start is significantly better than, by column."""
    detectable: dict[Column, float]
    """The true difference that a typical pair of the column would reveal, after correction."""


def with_common_runs(outcomes: Outcomes, terms: Sequence[Term]) -> list[Term]:
    """The terms, each restricted to the runs that all of them have; none where there is none."""
    scores = [outcomes.scores(term.start, term.column) for term in terms]
    runs = {frozenset() if one is None else one.runs for one in scores}
    common = frozenset.intersection(*runs)
    if not common:
        return []
    if len(runs) == 1:
        return list(terms)
    return [replace(term, column=replace(term.column, runs=common)) for term in terms]


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
    sums: dict[str, NDArray[np.float64]] = {}
    for term, scores in found:
        collection = term.column.collection
        here = term.weight * scores.by_query
        if collection in sums:
            _check_queries(found, collection)
            here = here + sums[collection]
        sums[collection] = here
    over_queries = summed([paired_effect(differences) for differences in sums.values()])
    over_seeds, seeds = _over_seeds(found)
    both = _over_both(outcomes, found, over_queries)
    queries = sum(len(differences) for differences in sums.values())
    return Estimate(over_queries, over_seeds, both, queries, seeds)


def _check_queries(found: Sequence[tuple[Term, Scores]], collection: str) -> None:
    here = [(term, scores) for term, scores in found if term.column.collection == collection]
    first, expected = here[0]
    for term, scores in here:
        if scores.queries != expected.queries:
            raise other_queries(
                f"{first.start!r} and {term.start!r} were scored on different queries of "
                f"{collection!r}",
                f"{term.column.kind}, {term.column.task}",
            )


def _over_seeds(found: Sequence[tuple[Term, Scores]]) -> tuple[Effect, int]:
    """The effect of one difference per pre-training seed that all terms have, and their number."""
    means = [
        dict(zip(scores.seeds, scores.values.mean(axis=1), strict=True)) for _, scores in found
    ]
    common = set.intersection(*(set(of_seed) for of_seed in means))
    if len(common) < 2:
        difference = sum(term.weight * scores.mean for term, scores in found)
        return Effect(difference, math.nan, math.nan), len(common)
    differences = [
        sum(term.weight * of_seed[seed] for (term, _), of_seed in zip(found, means, strict=True))
        for seed in sorted(common)
    ]
    return paired_effect(differences), len(common)


def _over_both(
    outcomes: Outcomes, found: Sequence[tuple[Term, Scores]], over_queries: Effect
) -> Effect:
    """The effect over queries with the variance that seeds add.

    It is pooled over starts, as three seeds of one say little; a start whose own is higher counts
    with its own, of which what is above the pooled one has its few degrees of freedom.
    """
    weights: dict[str, dict[Column, float]] = defaultdict(lambda: defaultdict(float))
    seeds: dict[str, int] = {}
    for term, scores in found:
        weights[term.start][term.column] += term.weight
        seeds[term.start] = min(len(scores.seeds), seeds.get(term.start, len(scores.seeds)))
    total, shared, denominator = 0.0, 0.0, 0.0
    shares: dict[SeedVariance, float] = defaultdict(float)
    for start, of_column in weights.items():
        scale = max(of_column.values(), key=abs)
        if scale:
            pattern = tuple((column, weight / scale) for column, weight in of_column.items())
            if (variance := outcomes.seed_variance(pattern)) is None:
                return over_queries
            share = scale**2 / seeds[start]
            above, freedom = variance.above(start)
            shares[variance] += share
            total += share * (variance.pooled + above)
            shared += share * variance.shared
            denominator += (share * above) ** 2 / freedom
    for variance, share in shares.items():
        denominator += (share * variance.pooled) ** 2 / variance.freedom
    return crossed(over_queries, total, shared, total**2 / denominator) if shares else over_queries


def compare_starts(
    outcomes: Outcomes, columns: Sequence[Column], settings: ReportSettings
) -> TableComparisons:
    """Every start against every other in every column, corrected over all of them together.

    Two starts are compared by the runs that both have, unless those are of one seed alone.
    """
    starts = outcomes.starts
    estimates = []
    for column in columns:
        for first, second in combinations(starts, 2):
            terms = (Term(1.0, first, column), Term(-1.0, second, column))
            found = estimate(outcomes, terms)
            if found is None:
                continue
            if common := with_common_runs(outcomes, terms):
                alike = estimate(outcomes, common)
                if alike is not None and alike.knows_seeds == found.knows_seeds:
                    found = alike
            estimates.append((column, first, second, found))
    raw = [found.chosen(settings).p_value for *_, found in estimates]
    pairs = tuple(
        Pair(*compared, p_value, corrected_p, corrected_p < settings.alpha)
        for compared, p_value, corrected_p in zip(
            estimates, raw, corrected(raw, settings.correction), strict=True
        )
    )
    names = letters_of(starts)
    beats: dict[tuple[str, Column], str] = {}
    for column in columns:
        here = [pair for pair in pairs if pair.column == column and pair.significant]
        for start in starts:
            beaten = {
                pair.second if pair.first == start else pair.first
                for pair in here
                if (pair.first == start) == (pair.estimate.queries.difference > 0)
                and start in (pair.first, pair.second)
            }
            beats[start, column] = joined(beaten, names)
    return TableComparisons(pairs, beats, _detectable(pairs, settings))


def _detectable(pairs: Sequence[Pair], settings: ReportSettings) -> dict[Column, float]:
    of_column: dict[Column, list[Effect]] = defaultdict(list)
    for pair in pairs:
        of_column[pair.column].append(pair.estimate.chosen(settings))
    found = {}
    for column, effects in of_column.items():
        effects.sort(key=lambda effect: effect.error)
        typical = effects[len(effects) // 2]
        found[column] = typical.detectable(settings.alpha / len(pairs), settings.power)
    return found
