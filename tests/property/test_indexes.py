"""Blocked search is brute force; what is saved is what is loaded."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from tests.factories import BM25, index_of

from isthmus.indexes.arrays import best
from isthmus.indexes.dense.field import DenseSearch
from isthmus.records import Document, Ranking

# Few distinct values make ties and exact sums; wild ones reach underflow and cancellation.
ties = st.integers(-2, 2).map(float)
wild = st.floats(-(2**13), 2**13, width=16) | st.floats(-(2**-60), 2**-60, width=32)


@st.composite
def problems(
    draw: st.DrawFn, numbers: st.SearchStrategy[float]
) -> tuple[np.ndarray, np.ndarray, list[str]]:
    dimension = draw(st.integers(1, 9))
    rows = draw(st.integers(1, 40))
    count = draw(st.integers(1, 4))
    vectors = draw(arrays.arrays(np.float32, (rows, dimension), elements=numbers))
    queries = draw(arrays.arrays(np.float32, (count, dimension), elements=numbers))
    ids = draw(st.lists(st.text(max_size=3), min_size=rows, max_size=rows, unique=True))
    return vectors, queries, ids


depths = st.integers(1, 50)
block_sizes = st.integers(1, 45)
dtypes = st.sampled_from(["float32", "float16"])


def search(
    vectors: np.ndarray,
    queries: np.ndarray,
    ids: list[str],
    dtype: str,
    block_rows: int,
    depth: int,
    mask: Any = None,
) -> list[Ranking]:
    stored = vectors.astype(dtype)
    largest = float(np.linalg.norm(stored.astype(np.float64), axis=1).max())
    ranks = np.argsort(sorted(range(len(ids)), key=ids.__getitem__))
    one = DenseSearch(stored, largest, ranks.__getitem__, block_rows)
    names = [str(number) for number in range(len(queries))]
    floors = np.full(len(names), -np.inf)
    found = one.answers(one.prepared(queries, names), depth, mask, floors)
    return [
        Ranking(name, tuple(ids[row] for row in rows), tuple(scores.tolist()))
        for name, (rows, scores) in zip(names, found, strict=True)
    ]


def brute_force(vectors: np.ndarray, query: np.ndarray, ids: list[str]) -> dict[str, float]:
    return {
        i: sum(float(a) * float(b) for a, b in zip(vector, query, strict=True))
        for i, vector in zip(ids, vectors, strict=True)
    }


@settings(max_examples=60, deadline=None)
@given(problems(ties), depths, block_sizes, dtypes)
def test_blocked_search_is_brute_force(
    problem: tuple[np.ndarray, np.ndarray, list[str]],
    depth: int,
    block_rows: int,
    dtype: str,
) -> None:
    vectors, queries, ids = problem
    found = search(vectors, queries, ids, dtype, block_rows, depth)
    assert found == [
        Ranking.sorted(str(number), brute_force(vectors, query, ids), depth)
        for number, query in enumerate(queries)
    ]


@settings(max_examples=60, deadline=None)
@given(problems(wild), depths, block_sizes, dtypes)
def test_nothing_better_is_missed_whatever_the_numbers(
    problem: tuple[np.ndarray, np.ndarray, list[str]],
    depth: int,
    block_rows: int,
    dtype: str,
) -> None:
    vectors, queries, ids = problem
    found = search(vectors, queries, ids, dtype, block_rows, depth)
    stored = vectors.astype(dtype).astype(np.float64)
    for ranking, query in zip(found, queries.astype(np.float64), strict=True):
        exact = brute_force(stored, query, ids)
        # float64 sums in another order differ in their last bits, float32 ones far sooner.
        tolerance = 1e-14 * float(np.abs(stored * query).sum(axis=1).max())
        assert len(ranking) == min(depth, len(ids))
        assert all(abs(score - exact[i]) <= tolerance for i, score in ranking)
        assert ranking == Ranking.sorted(ranking.query_id, dict(ranking))
        for i in set(ids) - set(ranking.document_ids):
            assert exact[i] <= ranking.scores[-1] + tolerance


@settings(max_examples=40, deadline=None)
@given(problems(ties), depths, block_sizes, st.sets(st.integers(0, 60)))
def test_a_mask_is_brute_force_over_the_chosen(
    problem: tuple[np.ndarray, np.ndarray, list[str]],
    depth: int,
    block_rows: int,
    chosen: set[int],
) -> None:
    vectors, queries, ids = problem
    mask = np.isin(np.arange(len(ids)), list(chosen))
    found = search(vectors, queries, ids, "float32", block_rows, depth, mask)
    for query, ranking in zip(queries, found, strict=True):
        scores = brute_force(vectors, query, ids)
        left = {one: scores[one] for one, holds in zip(ids, mask, strict=True) if holds}
        assert ranking == Ranking.sorted(ranking.query_id, left, depth)


@given(
    scores=st.lists(st.integers(0, 3), min_size=1, max_size=30),
    depth=st.integers(1, 35),
    shuffle=st.randoms(use_true_random=False),
)
def test_best_is_a_full_sort(scores: list[int], depth: int, shuffle: object) -> None:
    ranks = list(range(len(scores)))
    shuffle.shuffle(ranks)  # type: ignore[attr-defined]
    expected = sorted(range(len(scores)), key=lambda i: (-scores[i], ranks[i]))[:depth]
    assert best(np.array(scores, dtype=float), np.array(ranks), depth).tolist() == expected


visible = st.text(st.characters(codec="utf-8"), max_size=20)
values = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | visible
metadata = st.dictionaries(visible, values | st.lists(values, max_size=3), max_size=3)


@settings(max_examples=30, deadline=None)
@given(
    some=st.lists(
        st.builds(Document, visible, visible, visible, metadata=metadata),
        min_size=1,
        unique_by=lambda one: one.id,
    ),
    step=st.integers(1, 5),
)
def test_documents_come_back_as_they_went_in(some: list[Document], step: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        index = index_of(Path(folder) / "i", some, {"bm25": BM25}, step=step)
        ids = [one.id for one in some]
        assert list(index.ids()) == ids
        assert index.documents(ids * 20) == some * 20
        assert [index.document(one) for one in ids] == some
        (segment,) = index.segments
        assert [ids[row] for row in np.argsort(segment.ranks)] == sorted(ids)
        assert (index.row("absent" * 9), index.document("absent" * 9)) == (None, None)
