"""Blocked search is brute force; what is saved is what is loaded."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from isthmus.indexes.arrays import best
from isthmus.indexes.dense.builder import DenseBuilder
from isthmus.indexes.dense.index import DenseIndex
from isthmus.indexes.documents import DocumentStore, DocumentWriter
from isthmus.indexes.manifest import CorpusOrigin, Description, EncoderOrigin
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


def build(folder: Path, vectors: np.ndarray, ids: list[str], dtype: str) -> Path:
    description = Description(
        kind="dense",
        corpus=CorpusOrigin(spec="c", fingerprint="c"),
        titles=True,
        encoder=EncoderOrigin(name="e", fingerprint="e"),
        dimension=vectors.shape[1],
        dtype=dtype,  # type: ignore[arg-type]
    )
    with DenseBuilder(folder / "index", description) as builder:
        for start in range(0, len(ids), 7):
            block = [Document(i, "") for i in ids[start : start + 7]]
            builder.add(block, vectors[start : start + 7])
        return builder.finish({})


def build_and_open(
    folder: str, vectors: np.ndarray, ids: list[str], dtype: str, block_rows: int
) -> DenseIndex:
    return DenseIndex.open(build(Path(folder), vectors, ids, dtype), block_rows=block_rows)


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
    names = [str(number) for number in range(len(queries))]
    with tempfile.TemporaryDirectory() as folder:
        index = build_and_open(folder, vectors, ids, dtype, block_rows)
        found = index.search(queries, depth, names)
    assert found == [
        Ranking.sorted(name, brute_force(vectors, query, ids), depth)
        for name, query in zip(names, queries, strict=True)
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
    names = [str(number) for number in range(len(queries))]
    with tempfile.TemporaryDirectory() as folder:
        index = build_and_open(folder, vectors, ids, dtype, block_rows)
        found = index.search(queries, depth, names)
        stored = np.load(Path(folder) / "index" / "vectors.npy").astype(np.float64)
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
def test_among_is_brute_force_over_the_chosen(
    problem: tuple[np.ndarray, np.ndarray, list[str]],
    depth: int,
    block_rows: int,
    chosen: set[int],
) -> None:
    vectors, queries, ids = problem
    # Ids that the index does not hold are nobody's.
    among = [ids[number] if number < len(ids) else f"absent {number}" for number in sorted(chosen)]
    names = [str(number) for number in range(len(queries))]
    with tempfile.TemporaryDirectory() as folder:
        index = build_and_open(folder, vectors, ids, "float32", block_rows)
        found = index.search(queries, depth, names, among=among)
        rows = index.store.locate(among).tolist()
    assert rows == [number if number < len(ids) else -1 for number in sorted(chosen)]
    for name, query, ranking in zip(names, queries, found, strict=True):
        scores = brute_force(vectors, query, ids)
        assert ranking == Ranking.sorted(name, {i: scores[i] for i in among if i in scores}, depth)


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


@settings(max_examples=50, deadline=None)
@given(
    documents=st.lists(
        st.builds(Document, visible, visible, visible), min_size=1, unique_by=lambda d: d.id
    ),
    size=st.integers(1, 5),
)
def test_documents_come_back_as_they_went_in(documents: list[Document], size: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        with DocumentWriter(Path(folder), texts=True) as writer:
            for start in range(0, len(documents), size):
                writer.add(documents[start : start + size])
            writer.finish()
        store = DocumentStore(Path(folder))
        assert [store.document(row) for row in range(len(store))] == documents
        assert [store.row(document.id) for document in documents] == list(range(len(documents)))
