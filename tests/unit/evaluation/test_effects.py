"""Effects beside scipy's: p-values and intervals; and two sources of chance at once."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from isthmus.evaluation.statistics import Effect, crossed, paired_effect, summed


def test_a_paired_effect_is_that_of_scipy() -> None:
    differences = np.random.default_rng(1).normal(0.02, 0.2, 60)
    effect = paired_effect(differences)
    expected = stats.ttest_1samp(differences, 0.0)
    assert effect.p_value == pytest.approx(expected.pvalue, rel=1e-12)
    interval = expected.confidence_interval(0.9)
    assert effect.interval(0.9) == pytest.approx((interval.low, interval.high), rel=1e-12)


def test_two_independent_effects_are_welchs_test() -> None:
    generator = np.random.default_rng(2)
    one, other = generator.normal(0.1, 0.3, 9), generator.normal(0.0, 0.1, 40)
    effect = summed([paired_effect(one), paired_effect(-other)])
    expected = stats.ttest_ind(one, other, equal_var=False)
    assert effect.p_value == pytest.approx(expected.pvalue, rel=1e-12)
    assert effect.freedom == pytest.approx(expected.df)


def test_seeds_add_what_queries_do_not_hold() -> None:
    queries = Effect(0.02, 0.004, 499.0)
    wide = crossed(queries, seeds=5e-5, shared=1e-5, freedom=16.0)
    assert wide.error**2 == pytest.approx(0.004**2 + 4e-5)
    satterthwaite = (0.004**2 + 4e-5) ** 2 / (0.004**4 / 499 + 5e-5**2 / 16)  # of what is seen
    assert wide.freedom == pytest.approx(satterthwaite)
    assert wide.p_value > queries.p_value
    same = crossed(queries, seeds=1e-5, shared=3e-5, freedom=16.0)
    assert same.error == queries.error  # never below it
    assert same.difference == 0.02


def test_what_cannot_be_tested_is_not_significant() -> None:
    alone = paired_effect([0.3])
    assert alone.p_value == 1.0
    assert alone.interval() == (-math.inf, math.inf)
    constant = paired_effect([0.1, 0.1, 0.1])
    assert constant.p_value == 0.0
    assert paired_effect([0.0, 0.0]).p_value == 1.0
