"""A sparse field is brute force, whatever the blocks, threads and weights."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.factories import ENCODER

from isthmus.indexes.manifest import FieldCounts, SparseField, SparseSettings
from isthmus.indexes.sparse import builder as inverting
from isthmus.indexes.sparse import document_order as ordering
from isthmus.indexes.sparse import field
from isthmus.indexes.sparse.builder import SparseBuilder
from isthmus.indexes.sparse.field import SparseSearch
from isthmus.records import Document, Ranking

INTEGER = SparseSettings()
FLOAT = SparseSettings(weights="float")
WORST = SparseSettings(scale=10_000.0, rounding="round")  # 16 bits, and sums that need 64
BLOCKS = st.sampled_from([256, 512, 1024])


@pytest.fixture(scope="module", autouse=True)
def few_are_treated_as_many() -> Iterator[None]:
    """A handful of blocks is shared out among threads, a few hundred documents form groups."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(field, "BLOCKS_APIECE", 1)
        patch.setattr(ordering, "HALVED", 256)
        yield


@st.composite
def problems(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Documents and queries: few distinct weights make ties, a few large ones need more bytes.

    Frequent terms make long lists. Documents are many against the smallest block and the sizes
    of cells, which hypothesis would hardly reach by drawing every number.
    """
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    terms = draw(st.integers(1, 30))
    rows = draw(st.integers(1, 40) | st.integers(300, 900))
    levels = np.array([0, 0.004, 0.01, 0.29, 1.5, *draw(st.sampled_from([[], [2.6], [6.0]]))])
    frequency = generator.random(terms) ** draw(st.sampled_from([0.2, 1, 6]))

    def vectors(count: int) -> np.ndarray:
        weights = levels[generator.integers(0, len(levels), (count, terms))]
        return np.where(generator.random((count, terms)) < frequency, weights, 0).astype(np.float32)

    ids = [str(number) for number in generator.permutation(rows)]
    return vectors(rows), vectors(draw(st.integers(1, 3))), ids


class Built:
    """A sparse field of documents by their ids."""

    def __init__(
        self,
        folder: Path,
        vectors: Any,
        ids: Sequence[str],
        kept: SparseSettings = INTEGER,
        block: int = 256,
        sizes: Sequence[int] = (100,),
    ) -> None:
        rows = scipy.sparse.csr_matrix(vectors)
        self.folder, self.ids = folder, ids
        self.about = SparseField(encoder=ENCODER, dimension=rows.shape[1], settings=kept)
        builder, turn = SparseBuilder(folder, self.about, {}, block), 0
        while builder.rows < len(ids):
            start, size = builder.rows, sizes[turn % len(sizes)]
            documents = [Document(i, "") for i in ids[start : start + size]]
            builder.append(builder.checked(documents, rows[start : start + size]))
            turn += 1
        self.counts: FieldCounts = builder.finish()

    def search(
        self, queries: Any, depth: int, names: list[str], threads: int = 1, mask: Any = None
    ) -> list[Ranking]:
        ranks = np.argsort(sorted(range(len(self.ids)), key=self.ids.__getitem__))
        one = SparseSearch(
            self.folder, self.about, self.counts, len(ranks), ranks.__getitem__, threads
        )
        floors = np.full(len(names), -np.inf)
        found = one.answers(one.prepared(queries, names), depth, mask, floors)
        return [
            Ranking(name, tuple(self.ids[row] for row in rows), tuple(scores.tolist()))
            for name, (rows, scores) in zip(names, found, strict=True)
        ]


def brute_force(
    vectors: np.ndarray, query: np.ndarray, ids: Sequence[str], kept: SparseSettings
) -> dict[str, float]:
    """Products of Python numbers, in the order of terms."""

    def weight(value: np.float32) -> float:
        if kept.weights == "float":
            return float(value)
        scaled = float(value) * kept.scale
        return float(np.floor(scaled) if kept.rounding == "floor" else round(scaled))

    pairs = [(t, weight(w)) for t, w in enumerate(query) if w > 0]
    scores = {
        i: sum(w * weight(vector[t]) for t, w in pairs)
        for i, vector in zip(ids, vectors, strict=True)
    }
    return {i: score for i, score in scores.items() if score > 0}


@settings(max_examples=40)
@given(
    problems(),
    st.integers(1, 50) | st.just(10_000),
    BLOCKS,
    st.sampled_from([INTEGER, FLOAT, WORST]),
    st.integers(1, 3),
    st.none() | st.floats(0, 1),
)
def test_search_is_brute_force(
    problem: tuple[np.ndarray, np.ndarray, list[str]],
    depth: int,
    block: int,
    kept: SparseSettings,
    threads: int,
    share: float | None,
) -> None:
    vectors, queries, ids = problem
    names = [str(number) for number in range(len(queries))]
    among = None if share is None else set(ids[: int(share * len(ids))])
    mask = None if among is None else np.isin(ids, list(among))
    with tempfile.TemporaryDirectory() as folder:
        built = Built(Path(folder) / "field", vectors, ids, kept, block)
        found = built.search(scipy.sparse.csr_matrix(queries), depth, names, threads, mask)
    expected = []
    for name, query in zip(names, queries, strict=True):
        scores = brute_force(vectors, query, ids, kept)
        left = {i: s for i, s in scores.items() if among is None or i in among}
        expected.append(Ranking.sorted(name, left, depth))
    assert found == expected


@settings(max_examples=15)
@given(problems(), st.lists(st.integers(1, 90), min_size=1, max_size=4), BLOCKS)
def test_bytes_do_not_depend_on_how_documents_arrive(
    problem: tuple[np.ndarray, np.ndarray, list[str]], sizes: list[int], block: int
) -> None:
    vectors, _, ids = problem
    with tempfile.TemporaryDirectory() as folder:
        one = Built(Path(folder) / "one", vectors, ids, block=block, sizes=[len(ids)]).folder
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(inverting, "POSTINGS", 50)
            two = Built(Path(folder) / "two", vectors, ids, block=block, sizes=sizes).folder
        assert {file.name for file in one.iterdir()} == {file.name for file in two.iterdir()}
        for file in one.glob("*.npy"):
            assert file.read_bytes() == (two / file.name).read_bytes(), file.name


@pytest.mark.parametrize("kept", [INTEGER, FLOAT])
def test_a_large_collection_is_brute_force(tmp_path: Path, kept: SparseSettings) -> None:
    """Several blocks of the default size, long and short lists, bounds that cut."""
    generator = np.random.default_rng(5)
    rows, size = 30_000, 400
    topic = generator.integers(0, 100, rows)
    terms = np.minimum(generator.zipf(1.3, (rows, 20)) - 1, size - 1)
    terms[:, :8] = 3 * topic[:, None] + generator.integers(0, 30, (rows, 8))
    weights = generator.gamma(2, 0.4, terms.shape).astype(np.float32)
    numbers = np.repeat(np.arange(rows), 20)
    vectors = scipy.sparse.csr_matrix((weights.ravel(), (numbers, terms.ravel())), (rows, size))
    ids = [f"{row * 7919 % rows:05}" for row in range(rows)]
    built = Built(tmp_path / "field", vectors, ids, kept, block=8192, sizes=[10_000])
    queries = vectors[generator.integers(0, rows, 20)]
    stored, asked = vectors.astype(np.float64), queries.astype(np.float64)
    if kept is INTEGER:
        stored.data, asked.data = np.floor(100 * stored.data), np.floor(100 * asked.data)
    products = (stored @ asked.T).toarray().T
    names = [str(number) for number in range(20)]
    order = np.argsort(ids)
    for depth in (1, 10, 1000, 10_000):
        one = built.search(queries, depth, names, threads=1)
        two = built.search(queries, depth, names, threads=3)
        alone = built.search(queries[:1], depth, names[:1], threads=3)
        assert one == two
        assert one[:1] == alone
        for ranking, scores in zip(one, products, strict=True):
            best = order[np.argsort(-scores[order], kind="stable")][:depth]
            best = best[scores[best] > 0]
            np.testing.assert_allclose(ranking.scores, scores[best], rtol=1e-12)
            if kept is INTEGER:
                assert list(ranking.document_ids) == [ids[row] for row in best]
