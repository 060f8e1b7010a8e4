"""Exact dense search: inner products with every vector, in blocks, in bounded memory.

Products are computed in float32, which rounds differently for another block size, another batch or
another machine. So they only choose candidates: whatever may lie above the cut is scored again in
float64, and those scores decide. The answer is the same whatever the block size and the batch, and
identical vectors tie exactly.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from isthmus.errors import InputError, MismatchError
from isthmus.indexes.arrays import best, mapped
from isthmus.indexes.dense.hnsw import Graph
from isthmus.indexes.dense.scan import BlasScan, Doubles, Floats, Rows
from isthmus.indexes.documents import DocumentStore
from isthmus.indexes.index import Answer, VectorIndex
from isthmus.indexes.integrity import damaged
from isthmus.indexes.manifest import Manifest
from isthmus.indexes.verification import read_manifest

VECTORS = "vectors.npy"
_BLOCK_BYTES = 2**26


class DenseIndex(VectorIndex):
    """One vector per document, memory-mapped."""

    def __init__(
        self,
        manifest: Manifest,
        store: DocumentStore,
        vectors: npt.NDArray[np.floating[Any]],
        block_rows: int | None = None,
        graph: Graph | None = None,
    ) -> None:
        assert manifest.dimension is not None
        assert manifest.largest_norm is not None
        assert vectors.shape == (len(store), manifest.dimension)
        self.manifest = manifest
        self.store = store
        self.vectors = vectors
        self._block_rows = block_rows or max(1, _BLOCK_BYTES // (4 * manifest.dimension))
        self._graph = graph

    @classmethod
    def open(cls, folder: Path, hnsw: bool = False, block_rows: int | None = None) -> DenseIndex:
        """The index in a folder, searched exactly or by the graph beside it; only mapped so far."""
        manifest = read_manifest(folder, "dense")
        vectors = mapped(folder / VECTORS, folder)
        graph = Graph.open(folder, manifest) if hnsw else None
        store = DocumentStore(folder)
        if vectors.shape != (len(store), manifest.dimension):
            why = f"it is of shape {vectors.shape}, not {(len(store), manifest.dimension)}"
            raise damaged(folder / VECTORS, why, folder)
        return cls(manifest, store, vectors, block_rows, graph)

    def approximated(self, graph: Graph) -> DenseIndex:
        """The same index, searched by a graph."""
        return DenseIndex(self.manifest, self.store, self.vectors, self._block_rows, graph)

    def prepared(self, vectors: npt.NDArray[np.floating[Any]], query_ids: Sequence[str]) -> Floats:
        """The queries as `answers` takes them."""
        assert len(vectors) == len(query_ids)
        queries = np.ascontiguousarray(vectors, dtype=np.float32)
        self._check(queries, query_ids)
        return queries

    def answers(
        self,
        queries: Floats,
        depth: int,
        among: Collection[str] | None = None,
        floors: Doubles | None = None,
    ) -> list[Answer]:
        """Rows and scores of what `search` answers; lower scores than `floors` may be left out."""
        assert depth > 0
        found = [(np.empty(0, dtype=np.int64), np.empty(0)) for _ in queries]
        least = np.full(len(queries), -np.inf) if floors is None else floors
        for near in self._near(queries, found, depth, among, least):
            for number, rows in enumerate(near):
                scores = self._exact(rows, queries[number])
                found[number] = self._merge(found[number], rows, scores, depth)
        if self._graph is not None and among is None:
            self._complete(found, queries, depth, least)
        return found

    def _complete(self, found: list[Answer], queries: Floats, depth: int, least: Doubles) -> None:
        """Answers exactly where the graph met too few."""
        short = [n for n, (rows, _) in enumerate(found) if len(rows) < min(depth, len(self))]
        if not short:
            return
        exact = DenseIndex(self.manifest, self.store, self.vectors, self._block_rows)
        answers = exact.answers(queries[short], depth, None, least[short])
        for number, answer in zip(short, answers, strict=True):
            found[number] = answer

    def _near(
        self,
        queries: Floats,
        found: list[Answer],
        depth: int,
        among: Collection[str] | None,
        least: Doubles,
    ) -> Iterator[Iterator[Rows]]:
        """Block by block, of each query the rows that may be among its best."""
        if among is not None:
            rows = self.store.rows(among)
            for start in range(0, len(rows), self._block_rows):
                yield iter([rows[start : start + self._block_rows]] * len(queries))
            return
        if self._graph is not None:
            yield self._graph.near(queries, depth)
            return
        assert self.manifest.largest_norm is not None
        scan = BlasScan(self.vectors, queries, self.manifest.largest_norm)
        for first in range(0, len(self), self._block_rows):
            reached = np.array([s[-1] if len(s) == depth else -np.inf for _, s in found])
            floors = np.maximum(least, reached)
            yield scan(first, min(self._block_rows, len(self) - first), depth, floors)

    def _exact(self, rows: Rows, query: Floats) -> Doubles:
        # einsum and not a matrix product: BLAS sums a row differently depending on where it lies.
        stored, asked = self.vectors[rows].astype(np.float64), query.astype(np.float64)
        products: Doubles = np.einsum("ij,j->i", stored, asked, optimize=False)
        return products

    def _merge(self, kept: Answer, rows: Rows, scores: Doubles, depth: int) -> Answer:
        if not len(rows):
            return kept
        rows, scores = np.concatenate([kept[0], rows]), np.concatenate([kept[1], scores])
        chosen = best(scores, self.store.ranks[rows], depth)
        return rows[chosen], scores[chosen]

    def _check(self, queries: Floats, query_ids: Sequence[str]) -> None:
        if queries.ndim != 2 or queries.shape[1] != self.manifest.dimension:
            raise MismatchError(
                f"the query vectors have shape {queries.shape}, and the documents "
                f"{self.manifest.dimension} numbers each",
                "encode queries with the encoder that filled the index",
            )
        wrong = unusable(queries)
        if len(wrong):
            raise InputError(
                f"the vector of query {query_ids[wrong[0]]!r} is not finite",
                "check the encoder: its training may have diverged",
            )


def unusable(vectors: npt.NDArray[np.floating[Any]]) -> Rows:
    """Rows with NaN, infinity, or numbers so large that an inner product would overflow."""
    with np.errstate(over="ignore", invalid="ignore"):
        squares = np.einsum("ij,ij->i", vectors, vectors, dtype=np.float32, casting="same_kind")
    return np.flatnonzero(~np.isfinite(squares))
