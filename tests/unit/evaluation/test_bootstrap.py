"""Bootstrap intervals: they cover what they promise, and repeat."""

from __future__ import annotations

import numpy as np
import pytest

from isthmus.evaluation.bootstrap import mean_intervals


def test_the_interval_covers_the_true_mean_about_as_often_as_it_says() -> None:
    generator = np.random.default_rng(0)
    scores = generator.beta(0.5, 0.5, size=(400, 80))  # many zeros and ones, like real measures
    intervals = mean_intervals(scores, samples=1_000, confidence=0.9, seed=1)
    covered = np.mean((intervals[:, 0] <= 0.5) & (intervals[:, 1] >= 0.5))
    assert 0.85 < covered < 0.94


def test_the_interval_equals_plain_resampling() -> None:
    scores = np.random.default_rng(3).random(40)
    generator = np.random.default_rng(7)
    means = sorted(float(np.mean(generator.choice(scores, 40))) for _ in range(20_000))
    low, high = mean_intervals(scores, samples=20_000, confidence=0.95, seed=0)[0]
    assert low == pytest.approx(means[500], abs=0.004)
    assert high == pytest.approx(means[19_500], abs=0.004)


def test_one_query_has_no_spread() -> None:
    assert mean_intervals([0.25]).tolist() == [[0.25, 0.25]]
