"""Tests, corrections and letters against enumeration, textbooks and a constructed example."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from isthmus.errors import MismatchError, SettingsError
from isthmus.evaluation import (
    bonferroni,
    compare,
    holm,
    paired_t_test,
    randomisation_tests,
)
from isthmus.evaluation.statistics import Correction, Test, mean_intervals


def by_query(values: list[float]) -> dict[str, float]:
    return {f"q{number}": value for number, value in enumerate(values)}


def test_the_t_test_equals_its_formula() -> None:
    # Student's sleep data (1908), the example of every textbook: t = 4.0621, p = 0.002833.
    differences = [1.2, 2.4, 1.3, 1.3, 0.0, 1.0, 1.8, 0.8, 4.6, 1.4]
    assert paired_t_test(differences) == pytest.approx(0.00283289, abs=1e-8)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_randomisation_test_estimates_the_enumeration_of_all_sign_flips(seed: int) -> None:
    differences = np.round(np.random.default_rng(seed).normal(0.3, 1.0, size=9), 1)
    observed = abs(differences.sum())
    tosses = list(itertools.product([1, -1], repeat=len(differences)))
    extreme = sum(
        abs(math.fsum(sign * d for sign, d in zip(signs, differences, strict=True)))
        >= observed - 1e-9
        for signs in tosses
    )
    exact = extreme / len(tosses)
    samples = 40_000
    estimate = randomisation_tests(differences, samples, seed)[0]
    spread = math.sqrt(exact * (1 - exact) / samples)
    assert abs(estimate - exact) < 5 * spread + 1 / samples


def test_tosses_as_extreme_as_the_observed_one_count_despite_rounding() -> None:
    # Steps of 0.1 have no exact sum in binary; many tosses equal the observed mean but for that.
    differences = [0.1] * 8 + [-0.1] * 4
    exact = sum(math.comb(12, plus) for plus in range(13) if abs(2 * plus - 12) >= 4) / 2**12
    assert randomisation_tests(differences, 20_000, seed=0)[0] == pytest.approx(exact, abs=0.02)


def test_the_randomisation_test_never_says_zero_and_repeats_itself() -> None:
    overwhelming = np.ones(200)
    assert randomisation_tests(overwhelming, 999, seed=3) == [1 / 1000]
    uncertain = np.random.default_rng(0).normal(0.1, 1, 50)
    assert randomisation_tests(uncertain, 999, 3) == randomisation_tests(uncertain, 999, 3)
    assert randomisation_tests(uncertain, 999, 3) != randomisation_tests(uncertain, 999, 4)


def test_a_pairs_p_value_does_not_depend_on_the_other_systems() -> None:
    generator = np.random.default_rng(5)
    systems = {name: by_query(list(generator.random(40))) for name in "xyz"}
    alone = {name: systems[name] for name in "xy"}
    for test in ("t_test", "randomisation"):
        together = compare(systems, test=test).pairs[0].p_value
        assert together == compare(alone, test=test).pairs[0].p_value


@pytest.mark.parametrize("test", ["t_test", "randomisation"])
@pytest.mark.parametrize("values", [[0.0, 0.5, 1.0], [0.3, 0.3], [1.0]])
def test_identical_runs_are_not_different(test: Test, values: list[float]) -> None:
    result = compare({"one": by_query(values), "two": by_query(values)}, test=test)
    assert [pair.p_value for pair in result.pairs] == [1.0]
    assert result.beats == {"one": "", "two": ""}


def test_corrections_equal_the_textbook() -> None:
    # Holm's procedure on four hypotheses at level .05 rejects the first and the last only.
    p_values = [0.01, 0.04, 0.03, 0.005]
    assert bonferroni(p_values) == pytest.approx([0.04, 0.16, 0.12, 0.02])
    assert holm(p_values) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == bonferroni([]) == []


def constructed() -> dict[str, dict[str, float]]:
    """`weak` < `middle` ~ `twin` < `strong`, by far more than the noise."""
    generator = np.random.default_rng(0)
    difficulty = generator.random(200)
    means = {"weak": 0.0, "middle": 0.2, "twin": 0.2, "strong": 0.4}
    return {
        name: by_query(list(difficulty + mean + generator.normal(0, 0.05, 200)))
        for name, mean in means.items()
    }


@pytest.mark.parametrize("test", ["t_test", "randomisation"])
@pytest.mark.parametrize("correction", ["bonferroni", "holm"])
def test_a_system_carries_the_letters_of_those_it_beats(test: Test, correction: Correction) -> None:
    result = compare(constructed(), test=test, correction=correction)
    assert result.letters == {"weak": "a", "middle": "b", "twin": "c", "strong": "d"}
    assert result.beats == {"weak": "", "middle": "a", "twin": "a", "strong": "abc"}
    assert len(result.pairs) == 6
    first = result.pairs[0]
    assert (first.first, first.second) == ("weak", "middle")
    assert first.difference == pytest.approx(-0.2, abs=0.02)
    assert first.corrected_p_value >= first.p_value


def test_the_correction_can_take_a_letter_away() -> None:
    generator = np.random.default_rng(1)
    scores = {name: by_query(list(generator.random(30))) for name in "abcdefgh"}
    best = max(scores, key=lambda name: sum(scores[name].values()))
    scores[best] = {query: value + 0.1 for query, value in scores[best].items()}
    marks = {
        correction: sum(
            len(letters) for letters in compare(scores, correction=correction).beats.values()
        )
        for correction in ("none", "holm", "bonferroni")
    }
    assert marks["none"] > marks["holm"] >= marks["bonferroni"]


def test_different_queries_and_unknown_names_are_refused() -> None:
    with pytest.raises(MismatchError, match="'q1' for example"):
        compare({"x": {"q0": 1.0, "q1": 0.0}, "y": {"q0": 1.0}})
    with pytest.raises(SettingsError) as refusal:
        compare({"x": {"q": 1.0}}, test="ttest")  # type: ignore[arg-type]
    assert refusal.value.expected.startswith("t_test")
    with pytest.raises(SettingsError):
        compare({"x": {"q": 1.0}}, correction="tukey")  # type: ignore[arg-type]


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
