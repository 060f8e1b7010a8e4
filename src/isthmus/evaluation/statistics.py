"""Which differences are significant, and how large they are: tests, effects and intervals."""

from __future__ import annotations

import math
import string
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from isthmus.errors import MismatchError, SettingsError, choices

Test = Literal["t_test", "randomisation"]
Correction = Literal["bonferroni", "holm", "none"]

_BLOCK = 2**22  # draws held at a time: 32 MiB as float64


@dataclass(frozen=True)
class Comparison:
    """One pair of systems: the mean difference (first minus second) and how likely by luck."""

    first: str
    second: str
    difference: float
    p_value: float
    corrected_p_value: float
    significant: bool


@dataclass(frozen=True)
class Comparisons:
    """All pairs of systems under one test, and the marks that a table shows.

    `letters` names each system; `beats` holds, for each system, the letters of the systems that
    it is significantly better than.
    """

    letters: dict[str, str]
    beats: dict[str, str]
    pairs: tuple[Comparison, ...]


def compare(
    scores: Mapping[str, Mapping[str, float]],
    test: Test = "t_test",
    correction: Correction = "bonferroni",
    alpha: float = 0.05,
    samples: int = 10_000,
    seed: int = 0,
    pairs: Sequence[tuple[str, str]] | None = None,
) -> Comparisons:
    """Every system against every other over the same queries, or only these `pairs`.

    The correction counts all pairs of this call as one family. Samples and seed belong to the
    randomisation test alone.
    """
    _check(test, get_args(Test), "test")
    _check(correction, get_args(Correction), "correction")
    queries = common_queries(scores)
    values = {name: np.array([of[q] for q in queries], float) for name, of in scores.items()}
    pairs = list(combinations(values, 2)) if pairs is None else pairs
    differences = [values[first] - values[second] for first, second in pairs]
    if test == "t_test":
        raw = [paired_t_test(difference) for difference in differences]
    else:
        raw = randomisation_tests(np.array(differences), samples, seed)
    letters = letters_of(values)
    compared = tuple(
        Comparison(*pair, float(np.mean(difference)), p_value, corrected_p, corrected_p < alpha)
        for pair, difference, p_value, corrected_p in zip(
            pairs, differences, raw, corrected(raw, correction), strict=True
        )
    )
    return Comparisons(letters, _beats(letters, compared), compared)


def corrected(p_values: Sequence[float], correction: Correction) -> list[float]:
    """The p-values of one family of comparisons, corrected for their number."""
    return _CORRECTIONS[correction](p_values)


def paired_t_test(differences: ArrayLike) -> float:
    """The two-sided p-value of Student's paired t-test on one difference per query."""
    from scipy import stats  # takes a second to import

    values = np.asarray(differences, float)
    if len(values) < 2 or not values.any():
        return 1.0  # scipy answers NaN: no spread to test against, or nothing to test
    with warnings.catch_warnings():
        # Every query differs by the same amount: p is 0 then, with a warning from scipy.
        warnings.simplefilter("ignore", RuntimeWarning)
        return float(stats.ttest_1samp(values, 0.0).pvalue)


def randomisation_tests(differences: ArrayLike, samples: int, seed: int) -> list[float]:
    """The two-sided p-value of the paired randomisation test for each row of differences.

    Under the null hypothesis the sign of each query's difference is a coin toss. p = (hits + 1) /
    (samples + 1), where a hit is a toss with a mean at least as far from 0 as the one observed:
    the observed signs count as one toss, so p is never 0. All rows share the tosses, so a pair's
    p-value does not depend on which other systems are compared.
    """
    values = np.atleast_2d(np.asarray(differences, float))
    queries = values.shape[1]
    if values.size == 0:
        return [1.0] * len(values)
    # Sums in another order differ in their last bits: without this slack, tosses as extreme as
    # the observed one would be missed.
    observed = np.abs(values.sum(axis=1)) - 1e-12 * np.abs(values).sum(axis=1)
    generator = np.random.default_rng(seed)
    hits = np.zeros(len(values), dtype=np.int64)
    step = max(1, _BLOCK // queries)
    for start in range(0, samples, step):
        size = min(step, samples - start)
        flipped = generator.integers(0, 2, size=(size, queries), dtype=np.int8).astype(float)
        sums = values.sum(axis=1) - 2.0 * (flipped @ values.T)
        hits += (np.abs(sums) >= observed).sum(axis=0)
    return [float(p) for p in (hits + 1) / (samples + 1)]


def bonferroni(p_values: Sequence[float]) -> list[float]:
    """Each p-value times their number, at most 1."""
    return [min(1.0, p * len(p_values)) for p in p_values]


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down: the smallest p-value times m, the next times m - 1, …, never falling."""
    corrected = [0.0] * len(p_values)
    largest = 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, p_values[place] * (len(p_values) - rank)))
        corrected[place] = largest
    return corrected


_CORRECTIONS: dict[Correction, Callable[[Sequence[float]], list[float]]] = {
    "bonferroni": bonferroni,
    "holm": holm,
    "none": list,
}


def letters_of(systems: Collection[str]) -> dict[str, str]:
    """A letter for each system: a, b, …, z, aa, ab, …, as a spreadsheet names its columns."""
    letters = [
        "".join(pair) for pair in product(["", *string.ascii_lowercase], string.ascii_lowercase)
    ]
    assert len(systems) <= len(letters), "702 systems are enough for any table"
    return dict(zip(systems, letters, strict=False))


def joined(names: Iterable[str], letters: Mapping[str, str]) -> str:
    """The letters of some of these systems, as a table shows them."""
    # Beyond z a letter has two characters: "aab" could be read in two ways without commas.
    glue = "," if len(letters) > len(string.ascii_lowercase) else ""
    chosen = set(names)
    return glue.join(letter for system, letter in letters.items() if system in chosen)


def _beats(letters: Mapping[str, str], pairs: Sequence[Comparison]) -> dict[str, str]:
    beaten: dict[str, list[str]] = {system: [] for system in letters}
    for pair in pairs:
        if pair.significant:
            better, worse = pair.first, pair.second
            if pair.difference < 0:
                better, worse = worse, better
            beaten[better].append(worse)
    return {system: joined(names, letters) for system, names in beaten.items()}


def common_queries(scores: Mapping[str, Mapping[str, float]]) -> list[str]:
    """The queries of all systems, which must be the same ones wherever scores are paired."""
    reference, *others = scores.items() if scores else [("", {})]
    for name, values in others:
        if values.keys() != reference[1].keys():
            different = sorted(values.keys() ^ reference[1].keys())
            raise MismatchError(
                f"systems {reference[0]!r} and {name!r} were scored on different queries: "
                f"{len(different):,} have a score from one alone, {different[0]!r} for example",
                "score both with the same judgements",
            )
    return list(reference[1])


def _check(name: str, known: Sequence[str], where: str) -> None:
    if name not in known:
        raise SettingsError(
            f"there is no {where} named {name!r}",
            "choose one of these",
            choices(name, known),
        )


def mean_intervals(
    scores: ArrayLike, samples: int = 10_000, confidence: float = 0.95, seed: int = 0
) -> NDArray[np.float64]:
    """The percentile bootstrap interval (low, high) of the mean of each row, shape (rows, 2).

    A row holds one score per query. Each sample draws as many queries as there are, with
    replacement; all rows share the draws, so a row's interval does not depend on the others.
    """
    values = np.atleast_2d(np.asarray(scores, float))
    queries = values.shape[1]
    assert queries, "there is no mean over no queries"
    generator = np.random.default_rng(seed)
    means = np.empty((samples, len(values)))
    step = max(1, _BLOCK // queries)
    for start in range(0, samples, step):
        size = min(step, samples - start)
        drawn = generator.integers(0, queries, size=(size, queries))
        # How often each query was drawn: one matrix product then serves all rows.
        drawn += queries * np.arange(size)[:, None]
        counts = np.bincount(drawn.ravel(), minlength=size * queries).reshape(size, queries)
        means[start : start + size] = counts.astype(float) @ values.T / queries
    tail = (1.0 - confidence) / 2.0
    return np.quantile(means, [tail, 1.0 - tail], axis=0).T


@dataclass(frozen=True)
class Effect:
    """An estimated mean difference: its standard error and the degrees of freedom of that."""

    difference: float
    error: float
    freedom: float

    @property
    def p_value(self) -> float:
        """Two-sided, by Student's t."""
        from scipy import special

        if self.difference == 0.0 or math.isnan(self.error):
            return 1.0  # nothing to test, or nothing to test it against
        if self.error == 0.0:
            return 0.0
        return float(2.0 * special.stdtr(self.freedom, -abs(self.difference) / self.error))

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """The confidence interval of the difference; infinite where nothing is known of it."""
        from scipy import special

        if math.isnan(self.error):
            return -math.inf, math.inf
        if self.error == 0.0:
            return self.difference, self.difference
        reach = -float(special.stdtrit(self.freedom, (1.0 - confidence) / 2.0)) * self.error
        return self.difference - reach, self.difference + reach


def paired_effect(differences: ArrayLike) -> Effect:
    """The effect of one difference per query, or per seed: what a paired t-test looks at."""
    values = np.asarray(differences, float)
    mean = float(values.mean())
    if len(values) < 2:
        return Effect(mean, math.nan, math.nan)
    deviation = float(values.std(ddof=1))
    # The same amount everywhere: what is left of the deviation is rounding.
    if deviation <= 1e-12 * float(np.abs(values).max(initial=0.0)):
        deviation = 0.0
    return Effect(mean, deviation / math.sqrt(len(values)), len(values) - 1.0)


def summed(effects: Sequence[Effect]) -> Effect:
    """The sum of independent effects: variances add up, with Satterthwaite's degrees of freedom."""
    if len(effects) == 1:
        return effects[0]
    variances = [effect.error**2 for effect in effects]
    total = sum(variances)
    parts = [v**2 / e.freedom for v, e in zip(variances, effects, strict=True) if v]
    freedom = total**2 / sum(parts) if parts else math.nan
    return Effect(sum(effect.difference for effect in effects), math.sqrt(total), freedom)


def crossed(queries: Effect, seeds: float, shared: float, freedom: float) -> Effect:
    """The effect over queries, where seeds are drawn from many too.

    `seeds` is the variance of the difference that is seen from seed to seed, `freedom` its degrees
    of freedom, and `shared` the part of it that is noise of single queries, which the variance over
    queries holds already. This is the quasi-F test of two crossed random factors (Clark, Journal of
    Verbal Learning and Verbal Behavior, 1973), with Satterthwaite's degrees of freedom; the
    variance is never below that over queries alone.
    """
    own = queries.error**2
    total = own + max(0.0, seeds - shared)
    parts = own**2 / queries.freedom + seeds**2 / freedom
    if not parts > 0.0:  # no variance at all, or too few queries
        return queries
    return Effect(queries.difference, math.sqrt(total), total**2 / parts)
