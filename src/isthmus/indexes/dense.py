"""Exact dense search: inner products with every vector, in blocks, in bounded memory.

The products of a block are computed in float32, which rounds differently for another block
size, another batch or another machine. So they only choose candidates: whatever lies within the
rounding error of the cut is scored again in float64, and those scores decide. The answer is the
same whatever the block size, the batch and the backend, and identical vectors tie exactly.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from isthmus.errors import InputError, MismatchError, MissingPackageError
from isthmus.indexes.documents import DocumentStore
from isthmus.indexes.manifest import Manifest, read_manifest
from isthmus.indexes.selection import best
from isthmus.records import Ranking

VECTORS = "vectors.npy"
Backend = Literal["numpy", "faiss"]
_BLOCK_BYTES = 2**26
_QUERIES_AT_ONCE = 128

_Floats = npt.NDArray[np.float32]
_Doubles = npt.NDArray[np.float64]
_Rows = npt.NDArray[np.int64]


class DenseIndex:
    """One vector per document, memory-mapped."""

    def __init__(
        self,
        manifest: Manifest,
        store: DocumentStore,
        vectors: npt.NDArray[np.floating[Any]],
        backend: Backend = "numpy",
        block_rows: int | None = None,
    ) -> None:
        assert manifest.dimension is not None
        assert manifest.largest_norm is not None
        assert vectors.shape == (len(store), manifest.dimension)
        self.manifest = manifest
        self.store = store
        self._vectors = vectors
        self._block_rows = block_rows or max(1, _BLOCK_BYTES // (4 * manifest.dimension))
        self._candidates = _faiss_candidates() if backend == "faiss" else _numpy_candidates

    @classmethod
    def open(
        cls, folder: Path, backend: Backend = "numpy", block_rows: int | None = None
    ) -> DenseIndex:
        """The index in a folder; nothing but the manifest is read yet."""
        manifest = read_manifest(folder, "dense")
        vectors = np.load(folder / VECTORS, mmap_mode="r")
        return cls(manifest, DocumentStore(folder), vectors, backend, block_rows)

    def __len__(self) -> int:
        return len(self.store)

    def search(
        self, vectors: npt.NDArray[np.floating[Any]], depth: int, query_ids: Sequence[str]
    ) -> list[Ranking]:
        """The `depth` documents of highest inner product per query, equal ones by document id."""
        assert depth > 0
        assert len(vectors) == len(query_ids)
        queries = np.ascontiguousarray(vectors, dtype=np.float32)
        self._check(queries, query_ids)
        margins = self._margins(queries)
        found = [(np.empty(0, dtype=np.int64), np.empty(0)) for _ in query_ids]
        for start, block in self._blocks():
            floors = np.array([s[-1] if len(s) == depth else -np.inf for _, s in found])
            near = self._candidates(queries, block, depth, floors, margins)
            for number, places in enumerate(near):
                scores = _exact(block[places], queries[number])
                found[number] = self._merge(found[number], places + start, scores, depth)
        return self.store.rankings(query_ids, found)

    def _blocks(self) -> Iterator[tuple[int, _Floats]]:
        for start in range(0, len(self), self._block_rows):
            block = self._vectors[start : start + self._block_rows]
            yield start, np.ascontiguousarray(block, dtype=np.float32)

    def _merge(
        self, kept: tuple[_Rows, _Doubles], rows: _Rows, scores: _Doubles, depth: int
    ) -> tuple[_Rows, _Doubles]:
        if not len(rows):
            return kept
        rows, scores = np.concatenate([kept[0], rows]), np.concatenate([kept[1], scores])
        chosen = best(scores, self.store.ranks[rows], depth)
        return rows[chosen], scores[chosen]

    def _margins(self, queries: _Floats) -> _Doubles:
        """How far a float32 product can lie from the exact one, per query.

        n*u*|q|*|d| bounds the rounding of a sum of n products in any order (Higham, Accuracy and
        Stability, section 3.1); the smallest normal number covers products that underflow.
        """
        assert self.manifest.largest_norm is not None
        dimension = queries.shape[1]
        lengths = np.linalg.norm(queries.astype(np.float64), axis=1)
        unit = float(np.finfo(np.float32).eps)
        tiny = float(np.finfo(np.float32).tiny)
        margins: _Doubles = dimension * (unit * lengths * self.manifest.largest_norm + tiny)
        return margins

    def _check(self, queries: _Floats, query_ids: Sequence[str]) -> None:
        if queries.ndim != 2 or queries.shape[1] != self.manifest.dimension:
            raise MismatchError(
                f"the query vectors have shape {queries.shape}",
                where="the encoder of the queries",
                allowed=f"{self.manifest.dimension} numbers per query, as the documents have",
                remedy="encode queries with the encoder that filled the index",
            )
        wrong = unusable(queries)
        if len(wrong):
            raise InputError(
                f"the vector of query {query_ids[wrong[0]]!r} is not finite",
                where="the encoder of the queries",
                allowed="finite numbers",
                remedy="check the encoder: its training may have diverged",
            )


def unusable(vectors: npt.NDArray[np.floating[Any]]) -> _Rows:
    """Rows with NaN, infinity, or numbers so large that an inner product would overflow."""
    with np.errstate(over="ignore", invalid="ignore"):
        squares = np.einsum("ij,ij->i", vectors, vectors, dtype=np.float32, casting="same_kind")
    return np.flatnonzero(~np.isfinite(squares))


def _exact(vectors: _Floats, query: _Floats) -> _Doubles:
    # einsum and not a matrix product: BLAS sums a row differently depending on where it lies.
    products: _Doubles = np.einsum(
        "ij,j->i", vectors.astype(np.float64), query.astype(np.float64), optimize=False
    )
    return products


class _Candidates(Protocol):
    """Rows of a block that may be among the `depth` best, query after query.

    `floors` are the exact scores a document must reach to enter at all.
    """

    def __call__(
        self, queries: _Floats, block: _Floats, depth: int, floors: _Doubles, margins: _Doubles
    ) -> Iterator[_Rows]: ...


def _numpy_candidates(
    queries: _Floats, block: _Floats, depth: int, floors: _Doubles, margins: _Doubles
) -> Iterator[_Rows]:
    for number, (floor, margin) in enumerate(zip(floors, margins, strict=True)):
        place = number % _QUERIES_AT_ONCE
        if place == 0:
            products = queries[number : number + _QUERIES_AT_ONCE] @ block.T
        cut = floor - margin
        if np.isinf(floor) and len(block) > depth:
            # `depth` documents exceed this product less one error, so nothing below it less two.
            last = np.partition(products[place], len(block) - depth)[len(block) - depth]
            cut = last - 2 * margin
        yield np.flatnonzero(products[place] >= cut)


def _faiss_candidates() -> _Candidates:
    try:
        import faiss
    except ImportError:
        raise MissingPackageError("faiss", extra="ann", needed_for="backend=faiss") from None

    def candidates(
        queries: _Floats, block: _Floats, depth: int, floors: _Doubles, margins: _Doubles
    ) -> Iterator[_Rows]:
        # The search of IndexFlatIP on the memory-mapped block itself, without the index's copy.
        # It may drop any of several equal scores, so it fetches on until the cut is passed.
        count = min(depth + 8, len(block))
        while True:
            scores, rows = faiss.knn(queries, block, count, metric=faiss.METRIC_INNER_PRODUCT)
            cuts = floors - margins
            if count >= depth:
                cuts = np.maximum(cuts, scores[:, depth - 1] - 2 * margins)
            if count == len(block) or np.all(scores[:, -1] < cuts):
                break
            count = min(2 * count, len(block))
        for row, score, cut in zip(rows, scores, cuts, strict=True):
            yield row[score >= cut]

    return candidates
