"""Dense search where the right answer is known beforehand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.factories import described, documents, vectors

from isthmus.errors import InputError, MismatchError
from isthmus.indexes.dense.builder import DenseBuilder
from isthmus.indexes.dense.index import DenseIndex
from isthmus.records import Document

DESCRIPTION = described()
DOCUMENTS = documents()
VECTORS = vectors()


def test_vectors_are_a_plain_npy_file(dense_folder: Path) -> None:
    np.testing.assert_array_equal(np.load(dense_folder / "vectors.npy"), VECTORS)


def test_depth_beyond_the_collection(dense_folder: Path) -> None:
    (ranking,) = DenseIndex.open(dense_folder).search(VECTORS[:1], 1000, ["q"])
    assert len(ranking) == 50
    assert ranking.document_ids[0] == DOCUMENTS[int(np.argmax(VECTORS @ VECTORS[0]))].id
    assert list(ranking.scores) == sorted(ranking.scores, reverse=True)


def test_no_queries(dense_folder: Path) -> None:
    assert DenseIndex.open(dense_folder).search(np.empty((0, 4)), 10, []) == []


def test_identical_vectors_tie_exactly_and_go_by_id(tmp_path: Path) -> None:
    """Rounded products of equal vectors differ with their place in a block; the answer must not."""
    generator = np.random.default_rng(1)
    description = DESCRIPTION.model_copy(update={"dimension": 97})
    vectors = np.repeat(generator.standard_normal((1, 97)).astype(np.float32), 203, axis=0)
    documents = [Document(f"{row * 61 % 203:03}", "") for row in range(203)]
    with DenseBuilder(tmp_path / "ties", description) as builder:
        builder.add(documents, vectors)
        builder.finish({})
    queries = generator.standard_normal((5, 97)).astype(np.float32)
    for block_rows in (29, 150):  # shorter than the depth; long enough to hide ties
        index = DenseIndex.open(tmp_path / "ties", block_rows=block_rows)
        for ranking in index.search(queries, 100, list("abcde")):
            assert len(set(ranking.scores)) == 1
            assert ranking.document_ids == tuple(f"{number:03}" for number in range(100))


@pytest.mark.parametrize("step", [1, -1])
def test_best_documents_first_or_last_in_the_corpus(tmp_path: Path, step: int) -> None:
    """Early blocks must not raise the bar before `depth` documents are found."""
    scores = np.arange(20, dtype=np.float32)[::step]
    vectors = np.zeros((20, 4), dtype=np.float32)
    vectors[:, 1] = scores
    with DenseBuilder(tmp_path / "index", DESCRIPTION) as builder:
        builder.add([Document(f"{score:.0f}", "") for score in scores], vectors)
        builder.finish({})
    index = DenseIndex.open(tmp_path / "index", block_rows=3)
    (ranking,) = index.search(np.ones((1, 4)), 10, ["q"])
    assert ranking.document_ids == tuple(str(score) for score in range(19, 9, -1))


def test_answer_does_not_depend_on_blocks_or_batch(tmp_path: Path) -> None:
    """Equal to the last bit, where plain float32 products would differ."""
    generator = np.random.default_rng(2)
    description = DESCRIPTION.model_copy(update={"dimension": 64})
    vectors = generator.standard_normal((1000, 64)).astype(np.float32)
    documents = [Document(str(row), "") for row in range(1000)]
    with DenseBuilder(tmp_path / "index", description) as builder:
        builder.add(documents, vectors)
        builder.finish({})
    queries = generator.standard_normal((130, 64)).astype(np.float32)
    ids = [str(number) for number in range(130)]
    expected = DenseIndex.open(tmp_path / "index").search(queries, 20, ids)
    for block_rows in (7, 333, 5000):
        index = DenseIndex.open(tmp_path / "index", block_rows=block_rows)
        assert index.search(queries, 20, ids) == expected
        assert index.search(queries[:1], 20, ids[:1]) == expected[:1]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 3e38])
def test_unusable_vectors_are_refused_by_name(tmp_path: Path, bad: float) -> None:
    vectors = np.ones((3, 4), dtype=np.float32)
    vectors[1, 2] = bad
    documents = [Document(name, "") for name in "xyz"]
    with DenseBuilder(tmp_path / "index", DESCRIPTION) as builder:
        builder.add(documents, np.ones((3, 4)))
        with pytest.raises(InputError) as caught:
            builder.add(documents, vectors)
    assert "document 'y' (number 5 of the corpus) is not finite" in caught.value.what


def test_float16_overflow_is_refused(tmp_path: Path) -> None:
    description = DESCRIPTION.model_copy(update={"dtype": "float16"})
    with (
        DenseBuilder(tmp_path / "index", description) as builder,
        pytest.raises(InputError, match="not finite in float16"),
    ):
        builder.add([Document("a", "")], np.array([[1e5, 0, 0, 0]], dtype=np.float32))


def test_bad_queries_are_refused(dense_folder: Path) -> None:
    index = DenseIndex.open(dense_folder)
    with pytest.raises(InputError, match="query 'b' is not finite"):
        index.search(np.array([[0, 0, 0, 0], [0, np.nan, 0, 0]]), 3, ["a", "b"])
    with pytest.raises(MismatchError, match=r"shape \(1, 3\)"):
        index.search(np.zeros((1, 3)), 3, ["a"])
