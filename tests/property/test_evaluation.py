"""What must hold for any run, any judgements and any p-values."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.evaluation import bonferroni, compare, holm, per_query
from isthmus.evaluation.statistics import Test, mean_intervals
from isthmus.records import Ranking, Run

MEASURES = ["RR@10", "nDCG@10", "R@5", "R_cap@5", "Success@5", "AP", "Judged@10"]
QUERIES = st.sampled_from(["q1", "q2", "q3"])
DOCUMENTS = st.sampled_from([f"d{number}" for number in range(12)])
JUDGEMENTS = st.dictionaries(
    QUERIES, st.dictionaries(DOCUMENTS, st.integers(0, 3), min_size=1), min_size=1
)
TIED_SCORES = st.dictionaries(QUERIES, st.dictionaries(DOCUMENTS, st.integers(0, 3).map(float)))


def run_of(scores: dict[str, dict[str, float]], shuffle: random.Random | None = None) -> Run:
    """The rankings in any order of documents: nothing may depend on it."""
    rankings = {}
    for query, of in scores.items():
        pairs = list(of.items())
        if shuffle:
            shuffle.shuffle(pairs)
        rankings[query] = Ranking(query, tuple(d for d, _ in pairs), tuple(s for _, s in pairs))
    return Run("run", rankings)


@given(JUDGEMENTS, TIED_SCORES, st.randoms(use_true_random=False))
def test_the_order_of_documents_with_equal_scores_changes_no_measure(
    judgements: dict[str, dict[str, int]],
    scores: dict[str, dict[str, float]],
    shuffle: random.Random,
) -> None:
    plain = per_query(run_of(scores), judgements, MEASURES)
    assert per_query(run_of(scores, shuffle), judgements, MEASURES) == plain


@given(JUDGEMENTS, TIED_SCORES, TIED_SCORES)
def test_queries_that_nobody_judged_change_nothing(
    judgements: dict[str, dict[str, int]],
    scores: dict[str, dict[str, float]],
    more: dict[str, dict[str, float]],
) -> None:
    added = {**scores, **{f"unjudged {query}": of for query, of in more.items()}}
    assert per_query(run_of(added), judgements, MEASURES) == per_query(
        run_of(scores), judgements, MEASURES
    )


@given(JUDGEMENTS, TIED_SCORES)
def test_measures_lie_between_zero_and_one_for_exactly_the_judged_queries(
    judgements: dict[str, dict[str, int]], scores: dict[str, dict[str, float]]
) -> None:
    values = per_query(run_of(scores), judgements, MEASURES)
    for of in values.values():
        assert of.keys() == judgements.keys()
        assert all(0.0 <= value <= 1.0 + 1e-12 for value in of.values())
    for query in judgements:
        recall, capped, success = (values[name][query] for name in ("R@5", "R_cap@5", "Success@5"))
        assert recall - 1e-12 <= capped <= success + 1e-12


@given(st.lists(st.floats(0, 1), max_size=20))
def test_corrections_never_lower_a_p_value_and_holm_is_the_milder(p_values: list[float]) -> None:
    for raw, mild, strict in zip(p_values, holm(p_values), bonferroni(p_values), strict=True):
        assert raw <= mild <= strict <= 1.0
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    corrected = holm(p_values)
    assert [corrected[place] for place in order] == sorted(corrected)


SCORES = st.integers(1, 15).flatmap(
    lambda queries: st.lists(
        st.lists(st.integers(0, 4).map(lambda n: n / 4), min_size=queries, max_size=queries),
        min_size=2,
        max_size=4,
    )
)


@pytest.mark.parametrize("test", ["t_test", "randomisation"])
@given(systems=SCORES)
def test_p_values_are_probabilities_and_swapping_systems_swaps_signs(
    test: Test, systems: list[list[float]]
) -> None:
    scores = {
        f"s{place}": {f"q{n}": value for n, value in enumerate(values)}
        for place, values in enumerate(systems)
    }
    forward = compare(scores, test=test, samples=99)
    backward = compare(dict(reversed(scores.items())), test=test, samples=99)
    mirrored = {(pair.second, pair.first): pair for pair in backward.pairs}
    for pair in forward.pairs:
        assert 0.0 <= pair.p_value <= pair.corrected_p_value <= 1.0
        other = mirrored[pair.first, pair.second]
        assert pair.difference == pytest.approx(-other.difference)
        assert pair.p_value == pytest.approx(other.p_value)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30), st.integers(0, 5))
def test_an_interval_lies_within_the_scores(scores: list[float], seed: int) -> None:
    low, high = mean_intervals(scores, samples=50, seed=seed)[0]
    assert min(scores) - 1e-9 <= low <= high <= max(scores) + 1e-9
