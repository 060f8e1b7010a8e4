"""Segments searched as one: the answers of one whole, for less work than each alone."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.indexes.dense.builder import DenseBuilder
from isthmus.indexes.dense.index import DenseIndex
from isthmus.indexes.documents import DocumentStore
from isthmus.indexes.inverted.builder import InvertedBuilder
from isthmus.indexes.inverted.index import InvertedIndex
from isthmus.indexes.manifest import (
    CorpusOrigin,
    Description,
    EncoderOrigin,
    InvertedSettings,
    Segment,
)
from isthmus.indexes.segments.index import SegmentedIndex
from isthmus.indexes.segments.living import Part
from isthmus.records import Document, Ranking

SIZE = 4
LEVELS = np.array([0, 0.25, 0.5, 1.5], dtype=np.float32)  # few, so that scores tie


@pytest.fixture(scope="module", autouse=True)
def no_environment() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("isthmus.config.output.environment", dict)  # quicker
        yield


def described(kind: str) -> Description:
    dense = kind == "dense"
    return Description(
        kind="dense" if dense else "inverted",
        corpus=CorpusOrigin(spec="c", fingerprint="c"),
        titles=True,
        encoder=EncoderOrigin(name="e", fingerprint="e"),
        dimension=SIZE,
        dtype="float32" if dense else None,
        inverted=None if dense else InvertedSettings(),
    )


def matrix(kind: str, rows: Any) -> Any:
    values = np.asarray(rows, dtype=np.float32).reshape(-1, SIZE)
    return values if kind == "dense" else scipy.sparse.csr_matrix(values)


def segmented(
    kind: str, folder: Path, parts: Sequence[tuple[Sequence[str], Any]], deleted: set[str]
) -> SegmentedIndex:
    indexes: list[Any] = []
    for number, (ids, vectors) in enumerate(parts):
        builder: Any = DenseBuilder if kind == "dense" else InvertedBuilder
        with builder(folder / str(number), described(kind)) as building:
            building.add([Document(i, "") for i in ids], matrix(kind, vectors))
            path = building.finish({})
        indexes.append(DenseIndex.open(path) if kind == "dense" else InvertedIndex.open(path))
    gone = [
        np.array([row for row, i in enumerate(ids) if i in deleted], dtype=np.int64)
        for ids, _ in parts
    ]
    listed = [
        Segment(name=str(number), documents=len(ids)) for number, (ids, _) in enumerate(parts)
    ]
    manifest = indexes[0].manifest.model_copy(update={"segments": listed})
    return SegmentedIndex(manifest, indexes, gone)


def expected(kind: str, vectors: dict[str, Any], query: Any, depth: int) -> Ranking:
    scale = 1 if kind == "dense" else 100**2  # levels are whole hundredths: nothing is rounded
    scores = {i: scale * float(np.dot(vector, query)) for i, vector in vectors.items()}
    found = {i: score for i, score in scores.items() if kind == "dense" or score > 0}
    return Ranking.sorted("q", found, depth)


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(
    kind=st.sampled_from(["dense", "inverted"]),
    seed=st.integers(0, 2**32),
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=5),
    share=st.sampled_from([0, 0.05, 0.5, 0.95]),
    depth=st.integers(1, 12) | st.integers(30, 300),
    chosen=st.booleans(),
)
def test_answers_are_those_of_one_whole(
    kind: str, seed: int, sizes: list[int], share: float, depth: int, chosen: bool
) -> None:
    generator = np.random.default_rng(seed)
    vectors = LEVELS[generator.integers(0, len(LEVELS), (sum(sizes), SIZE))]
    queries = LEVELS[generator.integers(0, len(LEVELS), (5, SIZE))]
    ids = [str(number) for number in generator.permutation(sum(sizes))]
    # The best documents of the first query go first, so that it must look far below them.
    by_score = np.argsort(-(vectors @ queries[0]), kind="stable")
    deleted = {ids[row] for row in by_score[: int(share * len(ids))]}
    among = set(ids[::2]) | {"nobody"} if chosen else None
    living = {
        i: vector
        for i, vector in zip(ids, vectors, strict=True)
        if i not in deleted and (among is None or i in among)
    }
    cuts = np.cumsum([0, *sizes])
    parts = [(ids[a:b], vectors[a:b]) for a, b in pairwise(cuts)]
    with tempfile.TemporaryDirectory() as folder:
        index = segmented(kind, Path(folder), parts, deleted)
        found = index.search(matrix(kind, queries), depth, ["q"] * 5, among)
    assert found == [expected(kind, living, query, depth) for query in queries]


@pytest.mark.filterwarnings("error")
def test_a_floor_may_be_more_than_a_segment_can_hold(tmp_path: Path) -> None:
    """Scores beyond 32 bits in one segment, none in the other, which is searched later."""
    parts = [(["a", "c"], [[655, 0, 0, 0], [1, 0, 0, 0]]), (["b"], [[0.5, 0, 0, 0]])]
    index = segmented("inverted", tmp_path, parts, set())
    query = matrix("inverted", [655, 0, 0, 0])
    assert index.search(query, 1, ["q"]) == [Ranking("q", ("a",), (65_500.0**2,))]
    assert index.search(query, 3, ["q"])[0].document_ids == ("a", "c", "b")


@pytest.mark.parametrize("kind", ["dense", "inverted"])
def test_a_segment_is_asked_again_below_many_deleted_documents(kind: str, tmp_path: Path) -> None:
    """By the one query that found too few, with the scores that this one must reach."""
    large, small = np.zeros((300, SIZE)), np.zeros((200, SIZE))
    large[:, 0], large[:, 1] = 500 - np.arange(300), 1
    small[:, 0], small[:, 1] = 1, 250 - np.arange(200)
    ids = [f"{number:03}" for number in range(500)]
    parts = [(ids[:300], large), (ids[300:], small)]
    index = segmented(kind, tmp_path, parts, set(ids[300:360]))
    found = index.search(matrix(kind, np.eye(SIZE)[:2]), 3, ["q", "r"])
    assert [ranking.document_ids for ranking in found] == [tuple(ids[:3]), tuple(ids[360:363])]


@pytest.fixture
def three(tmp_path: Path) -> SegmentedIndex:
    """Three hundred documents with scores of their own for a query of ones."""
    weights = np.random.default_rng(0).permutation(300) + 1.0
    parts = [
        ([f"{part}-{row}" for row in range(100)], np.eye(SIZE)[[0] * 100] * some[:, None])
        for part, some in enumerate(np.split(weights, 3))
    ]
    return segmented("inverted", tmp_path, parts, set())


def test_ids_are_read_of_documents_that_are_answered(
    three: SegmentedIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = 0
    ids = DocumentStore.ids

    def counted(store: DocumentStore, rows: Any) -> list[str]:
        nonlocal read
        read += len(rows)
        return ids(store, rows)

    monkeypatch.setattr(DocumentStore, "ids", counted)
    (ranking,) = three.search(matrix("inverted", np.ones(SIZE)), 20, ["q"])
    assert ranking.scores == tuple(100.0 * 100 * weight for weight in range(300, 280, -1))
    assert read == 20


def test_what_one_segment_reached_spares_the_next(
    three: SegmentedIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    floors: list[float] = []
    answers = InvertedIndex.answers

    def watched(index: InvertedIndex, queries: Any, depth: int, among: Any, least: Any) -> Any:
        floors.append(float(least[0]))
        found = answers(index, queries, depth, among, least)
        assert (found[0][1] >= least[0]).all()
        return found

    monkeypatch.setattr(InvertedIndex, "answers", watched)
    (ranking,) = three.search(matrix("inverted", np.ones(SIZE)), 20, ["q"])
    assert floors[0] < floors[1] < floors[2] <= ranking.scores[-1]


def test_queries_are_quantised_once(three: SegmentedIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0
    prepared = InvertedIndex.prepared

    def counted(index: InvertedIndex, vectors: Any, query_ids: Any) -> Any:
        nonlocal calls
        calls += 1
        return prepared(index, vectors, query_ids)

    monkeypatch.setattr(InvertedIndex, "prepared", counted)
    three.search(matrix("inverted", np.ones((2, SIZE))), 20, ["q", "r"])
    assert calls == 1


def test_enough_are_asked_for_and_not_many_more(tmp_path: Path) -> None:
    index = segmented("dense", tmp_path, [(list("abcdefghij"), np.ones((10, SIZE)))], set("ab"))
    store = index.segments[0][1].store
    assert Part(store, np.empty(0, dtype=np.int64)).enough(7) == 7
    assert Part(store, np.array([3])).enough(7) == 8
    assert Part(store, np.arange(5)).enough(1) == 6
    assert Part(store, np.arange(5)).enough(1000) == 1005
