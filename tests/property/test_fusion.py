"""Fusion: what must hold for any rankings, and the formulas by hand."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.records import Ranking
from isthmus.retrieval.fusion import fuse as fuse_rankings
from isthmus.retrieval.fusion import fusions

rankings = st.dictionaries(
    st.sampled_from("abcdefghij"), st.integers(-20, 20).map(float), max_size=10
).map(lambda scores: Ranking.sorted("q", scores))
systems = st.lists(st.tuples(rankings, st.sampled_from([0.1, 0.25, 1.0, 3.0])), min_size=1)
every_fusion = pytest.mark.parametrize("name", fusions.names())


def fuse(name: str, pairs: list[tuple[Ranking, float]]) -> Ranking:
    return fuse_rankings(
        [ranking for ranking, _ in pairs], [weight for _, weight in pairs], fusions.load(name)
    )


def test_the_shipped_fusions() -> None:
    assert fusions.names() == ["raw_sum", "reciprocal_rank", "weighted_sum"]


@every_fusion
@given(pairs=systems, shuffle=st.randoms(use_true_random=False))
def test_order_of_systems_changes_nothing(name: str, pairs: list, shuffle: object) -> None:
    other = list(pairs)
    shuffle.shuffle(other)  # type: ignore[attr-defined]
    assert fuse(name, pairs) == fuse(name, other)


@every_fusion
@given(one=rankings, others=st.lists(rankings))
def test_one_system_alone_keeps_its_order(name: str, one: Ranking, others: list) -> None:
    fused = fuse(name, [(one, 1.0), *((other, 0.0) for other in others)])
    assert fused.document_ids == one.document_ids


@every_fusion
@given(pairs=systems)
def test_nothing_is_lost_and_nothing_invented(name: str, pairs: list) -> None:
    fused = fuse(name, pairs)
    assert set(fused.document_ids) == {d for ranking, _ in pairs for d in ranking.document_ids}
    assert fused == Ranking.sorted("q", dict(fused))
    assert all(fused.top(n) == Ranking.sorted("q", dict(fused), n) for n in range(len(fused) + 1))


@every_fusion
@given(pairs=systems, factor=st.sampled_from([2.0, 4.0, 0.5]))
def test_only_proportions_of_weights_matter(name: str, pairs: list, factor: float) -> None:
    scaled = [(ranking, weight * factor) for ranking, weight in pairs]
    assert fuse(name, pairs).document_ids == fuse(name, scaled).document_ids


@given(pairs=systems)
def test_reciprocal_rank_by_hand(pairs: list) -> None:
    expected: dict[str, float] = {}
    for ranking, weight in pairs:
        for place, document_id in enumerate(ranking.document_ids):
            expected[document_id] = expected.get(document_id, 0) + weight / (60 + place + 1)
    assert dict(fuse("reciprocal_rank", pairs)) == pytest.approx(expected)


@given(pairs=systems, name=st.sampled_from(["weighted_sum", "raw_sum"]))
def test_sums_by_hand(pairs: list, name: str) -> None:
    documents = {d for ranking, _ in pairs for d in ranking.document_ids}
    expected = dict.fromkeys(documents, 0.0)
    for ranking, weight in pairs:
        if not len(ranking):
            continue
        scores = dict(ranking)
        low, high = min(scores.values()), max(scores.values())
        for document_id in documents:
            score = scores.get(document_id, low)
            if name == "weighted_sum":
                if low == high:
                    score = 1.0 if document_id in scores else 0.0
                else:
                    score = (score - low) / (high - low)
            expected[document_id] += weight * score
    assert dict(fuse(name, pairs)) == pytest.approx(expected, abs=1e-12)


@given(pairs=systems, shift=st.integers(-5, 5), stretch=st.sampled_from([0.5, 2.0, 8.0]))
def test_min_max_forgets_the_scale_of_each_system(pairs: list, shift: int, stretch: float) -> None:
    moved = [
        (Ranking("q", r.document_ids, tuple(s * stretch + shift for s in r.scores)), w)
        for r, w in pairs
    ]
    assert dict(fuse("weighted_sum", moved)) == pytest.approx(dict(fuse("weighted_sum", pairs)))


def test_weighted_sum_worked_example() -> None:
    dense = Ranking("q", ("a", "b", "c"), (0.9, 0.7, 0.5))
    sparse = Ranking("q", ("c", "d"), (30.0, 10.0))
    fused = fuse("weighted_sum", [(dense, 0.75), (sparse, 0.25)])
    assert fused.document_ids == ("a", "b", "c", "d")
    assert fused.scores == pytest.approx((0.75, 0.375, 0.25, 0.0))
    assert math.isclose(
        dict(fuse("reciprocal_rank", [(dense, 1), (sparse, 1)]))["c"], 1 / 63 + 1 / 61
    )
