"""How large a difference is, how sure its size, and which differences could have been found."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike


@dataclass(frozen=True)
class Effect:
    """An estimated mean difference: its standard error and the degrees of freedom of that."""

    difference: float
    error: float
    freedom: float
    standardised: float = math.nan
    """The difference in standard deviations of the single differences (Cohen's d of pairs)."""

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

    def detectable(self, alpha: float = 0.05, power: float = 0.8) -> float:
        """The true difference at which a two-sided t-test rejects with probability `power`.

        Infinite where the error, or how sure it is, is not known well enough to say.
        """
        from scipy import optimize, special

        if self.error == 0.0:
            return 0.0
        if math.isnan(self.error) or not self.freedom >= 1.0:  # below, scipy has no noncentral t
            return math.inf
        threshold = -float(special.stdtrit(self.freedom, alpha / 2.0))

        # The other tail rejects too, with a probability that is beyond any digit shown.
        def lacking(shift: float) -> float:
            return float(special.nctdtr(self.freedom, shift, threshold)) - (1.0 - power)

        if lacking(0.0) <= 0.0:
            return 0.0
        highest = threshold
        while lacking(highest) > 0.0:
            highest *= 1.5
        if math.isnan(lacking(highest)):  # beyond what scipy computes
            return math.inf
        return float(optimize.brentq(lacking, 0.0, highest)) * self.error


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
    standardised = mean / deviation if deviation else math.nan
    return Effect(mean, deviation / math.sqrt(len(values)), len(values) - 1.0, standardised)


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
    return Effect(queries.difference, math.sqrt(total), total**2 / parts, queries.standardised)
