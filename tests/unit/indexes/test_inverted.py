"""The inverted index where the right answer is known beforehand."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
from tests.factories import described

from isthmus.errors import InputError, MismatchError
from isthmus.indexes.dense.index import DenseIndex
from isthmus.indexes.inverted.builder import InvertedBuilder
from isthmus.indexes.inverted.index import InvertedIndex
from isthmus.indexes.manifest import InvertedSettings
from isthmus.indexes.verification import read_manifest
from isthmus.records import Document, Ranking

SIZE = 6
DESCRIPTION = described("inverted", dimension=SIZE)


def build(folder: Path, rows: list[list[float]], **changes: object) -> InvertedIndex:
    kept = InvertedSettings.parse(changes, where="test")
    description = described("inverted", dimension=SIZE, inverted=kept)
    with InvertedBuilder(folder, description, block=256) as builder:
        documents = [Document(chr(ord("a") + row), "") for row in range(len(rows))]
        builder.add(documents, scipy.sparse.csr_matrix(np.array(rows, dtype=np.float32)))
        return InvertedIndex.open(builder.finish({}))


def ask(index: InvertedIndex, *weights: float, depth: int = 10) -> Ranking:
    query = scipy.sparse.csr_matrix(np.array([weights], dtype=np.float32))
    return index.search(query, depth, ["q"])[0]


def test_weights_are_rounded_down_on_both_sides(tmp_path: Path) -> None:
    rows = [[0.999, 0, 0, 0, 0, 0], [0.29, 0, 0, 0, 0, 0.009]]
    index = build(tmp_path / "index", rows)
    assert ask(index, 0.019, 0, 0, 0, 0, 1) == Ranking("q", ("a", "b"), (99.0, 28.0))


def test_weights_are_rounded_to_the_nearest(tmp_path: Path) -> None:
    rows = [[0.999, 0, 0, 0, 0, 0], [0.29, 0, 0, 0, 0, 0.009]]
    index = build(tmp_path / "index", rows, rounding="round", scale=10)
    assert ask(index, 0.06, 0, 0, 0, 0, 1) == Ranking("q", ("a", "b"), (10.0, 3.0))


def test_float_weights_stay_as_they_are(tmp_path: Path) -> None:
    index = build(tmp_path / "index", [[0.1, 0.2, 0, 0, 0, 0]], weights="float")
    expected = float(np.float32(0.1)) * float(np.float32(0.3)) + float(np.float32(0.2))
    assert ask(index, 0.3, 1, 0, 0, 0, 0).scores == (expected,)


def test_strongest_terms_are_kept(tmp_path: Path) -> None:
    """By the weight as it came: 0.5 and 0.505 are both 50; of equal ones the lower term stays."""
    rows = [[0.5, 0.505, 0.2, 0.2, 0, 0], [0.3, 0.3, 0.3, 0, 0, 0]]
    index = build(tmp_path / "index", rows, terms=1)
    assert read_manifest(tmp_path / "index").layout.postings == 2  # type: ignore[union-attr]
    assert ask(index, 1, 2, 1, 1, 1, 1) == Ranking("q", ("a", "b"), (10_000.0, 3_000.0))


def test_empty_vectors_are_documents_and_queries(tmp_path: Path) -> None:
    rows = [[0.0] * SIZE, [1, 0, 0, 0, 0, 0], [0.001, 0, 0, 0, 0, 0]]
    index = build(tmp_path / "index", rows)
    assert len(index) == 3
    assert ask(index, 1, 1, 1, 1, 1, 1) == Ranking("q", ("b",), (10_000.0,))
    assert ask(index, 0.001, 0, 0, 0, 0, 0) == Ranking("q")
    assert index.search(scipy.sparse.csr_matrix((0, SIZE)), 3, []) == []
    nothing = build(tmp_path / "nothing", [[0.0] * SIZE])
    assert ask(nothing, 1, 1, 1, 1, 1, 1) == Ranking("q")


def test_ties_go_by_id_however_many(tmp_path: Path) -> None:
    rows, ids = 500, [f"{row * 61 % 500:03}" for row in range(500)]
    vectors = scipy.sparse.csr_matrix(np.tile([1.0, 0, 0, 2.0, 0, 0], (rows, 1)))
    with InvertedBuilder(tmp_path / "ties", DESCRIPTION, block=256) as builder:
        builder.add([Document(i, "") for i in ids], vectors)
        index = InvertedIndex.open(builder.finish({}))
    for depth in (1, 7, 100, 499):
        ranking = ask(index, 1, 0, 0, 1, 0, 0, depth=depth)
        assert ranking.document_ids == tuple(f"{number:03}" for number in range(depth))


def test_bounds_are_rounded_up(tmp_path: Path) -> None:
    """The second best is alone in its block; a 255th less, and its cell would be out of reach."""
    rows = [[60_000.0, 9, 0, 0, 0, 0]] * 256 + [[50_000.0, 0, 9, 0, 0, 0]] * 256
    rows[100], rows[400] = [65_535.0, 9, 0, 0, 0, 0], [60_100.0, 0, 9, 0, 0, 0]
    index = build(tmp_path / "index", rows, scale=1)
    found = ask(index, 1, 0, 0, 0, 0, 0, depth=2)
    assert found == Ranking("q", (chr(97 + 100), chr(97 + 400)), (65_535.0, 60_100.0))


@pytest.mark.parametrize("weight", [2.55, 2.56, 5.1, 7.65, 7.66, 655.35])
def test_large_weights(tmp_path: Path, weight: float) -> None:
    """One byte, several, two bytes, and sums beyond 32 bits."""
    rows = [[0.5, 1, 0, 0, 0, 0]] * 40 + [[weight, 1, 0, 0, 0, 0]]
    index = build(tmp_path / "index", rows, rounding="round")
    whole = round(weight * 100)
    assert ask(index, weight, 0, 0, 0, 0, 0, depth=1).scores == (whole * whole,)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -0.5, 1e39])
def test_unusable_weights_are_refused_by_name(tmp_path: Path, bad: float) -> None:
    vectors = np.ones((2, SIZE))
    vectors[1, 4] = bad
    rows = scipy.sparse.csr_matrix(vectors)
    with (
        InvertedBuilder(tmp_path / "index", DESCRIPTION) as builder,
        pytest.raises(InputError, match="document 'y' has the weight") as caught,
    ):
        builder.add([Document("x", ""), Document("y", "")], rows)
    assert "for term 4" in caught.value.what
    index = build(tmp_path / "good", [[1.0] * SIZE])
    with pytest.raises(InputError, match="query 'two' has the weight"):
        index.search(rows, 3, ["one", "two"])


def test_weights_too_large_for_the_scale(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="times the scale 100 it is more than 65,535") as caught:
        build(tmp_path / "index", [[655.4, 0, 0, 0, 0, 0]])
    assert "weights=float" in caught.value.fix


@pytest.mark.parametrize("size", [SIZE - 1, SIZE + 1])
def test_vectors_of_another_vocabulary(tmp_path: Path, size: int) -> None:
    index = build(tmp_path / "index", [[1.0] * SIZE])
    with pytest.raises(MismatchError, match=rf"shape \(1, {size}\)") as caught:
        index.search(scipy.sparse.csr_matrix((1, size)), 3, ["q"])
    assert "not 6 weights each" in caught.value.what


def test_terms_in_any_order_and_twice(tmp_path: Path) -> None:
    index = build(tmp_path / "index", [[1, 2, 0, 0, 0, 0]])
    query = scipy.sparse.csr_matrix(([1.0, 1.0, 1.0], [1, 0, 1], [0, 3]), shape=(1, SIZE))
    assert index.search(query, 1, ["q"])[0].scores == (50_000.0,)
    assert query.nnz == 3, "the query was changed under its owner's hands"
    assert index.search(query.tocoo(), 1, ["q"])[0].scores == (50_000.0,)


def test_other_kinds_are_refused(tmp_path: Path, dense_folder: Path) -> None:
    with pytest.raises(MismatchError, match="is a dense index, not an inverted index"):
        InvertedIndex.open(dense_folder)
    build(tmp_path / "index", [[1.0] * SIZE])
    with pytest.raises(MismatchError, match="is an inverted index, not a dense index"):
        DenseIndex.open(tmp_path / "index")


def test_opening_brings_neither_numba_nor_torch(tmp_path: Path) -> None:
    folder = tmp_path / "index"
    build(folder, [[1.0] * SIZE])
    code = (
        "import sys; from pathlib import Path\n"
        "from isthmus.indexes.inverted.index import InvertedIndex\n"
        f"print(len(InvertedIndex.open(Path({str(folder)!r}))))\n"
        "assert not {'numba', 'torch', 'transformers'} & set(sys.modules), 'heavy imports'"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("1\n", 0), done.stderr
