"""Exact dense search: inner products with every vector, in blocks, in bounded memory.

Products are computed in float32, which rounds differently for another block size, another batch or
another machine. So they only choose candidates: whatever may lie above the cut is scored again in
float64, and those scores decide. The answer is the same whatever the block size and the batch, and
identical vectors tie exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from isthmus.errors import InputError, MismatchError
from isthmus.indexes.arrays import best, mapped
from isthmus.indexes.dense.hnsw import Graph
from isthmus.indexes.dense.scan import BlasScan, Doubles, Floats, Rows
from isthmus.indexes.integrity import damaged
from isthmus.indexes.manifest import DenseField, FieldCounts
from isthmus.indexes.structure import refusing, shaped
from isthmus.indexes.vectors import Answer, Mask

VECTORS = "vectors.npy"
_BLOCK_BYTES = 2**26
_FEW = 32  # one row in so many is sooner scored exactly than found by a scan of all


class DenseSearch:
    """One vector per row, memory-mapped."""

    def __init__(
        self,
        vectors: npt.NDArray[np.floating[Any]],
        largest_norm: float,
        ranks: Callable[[Rows], Rows],
        block_rows: int | None = None,
        graph: Graph | None = None,
    ) -> None:
        self.vectors = vectors
        self._largest_norm = largest_norm
        self._ranks = ranks
        self._block_rows = block_rows or max(1, _BLOCK_BYTES // (4 * vectors.shape[1]))
        self._graph = graph

    @classmethod
    def open(
        cls,
        folder: Path,
        about: DenseField,
        counts: FieldCounts,
        rows: int,
        ranks: Callable[[Rows], Rows],
        graph: bool = False,
    ) -> DenseSearch:
        """The field in a folder, searched exactly or by its graph, where it has one."""
        vectors = mapped(folder / VECTORS, folder)
        if vectors.shape != (rows, about.dimension):
            why = f"it is of shape {vectors.shape}, not {(rows, about.dimension)}"
            raise damaged(folder / VECTORS, why, folder)
        assert counts.largest_norm is not None
        found = None
        if graph and counts.recall is not None and about.settings.graph is not None:
            found = Graph.open(folder, about.settings.graph, rows, about.dimension)
        return cls(vectors, counts.largest_norm, ranks, graph=found)

    def prepared(self, vectors: npt.NDArray[np.floating[Any]], query_ids: Sequence[str]) -> Floats:
        """The queries as `answers` takes them."""
        assert len(vectors) == len(query_ids)
        queries = np.ascontiguousarray(vectors, dtype=np.float32)
        if queries.ndim != 2 or queries.shape[1] != self.vectors.shape[1]:
            raise MismatchError(
                f"the query vectors have shape {queries.shape}, and the documents "
                f"{self.vectors.shape[1]} numbers each",
                "encode queries with the encoder that filled the index",
            )
        wrong = unusable(queries)
        if len(wrong):
            raise InputError(
                f"the vector of query {query_ids[wrong[0]]!r} is not finite",
                "check the encoder: its training may have diverged",
            )
        return queries

    def answers(self, queries: Floats, depth: int, mask: Mask, floors: Doubles) -> list[Answer]:
        """The best rows of each query, exactly; scores below the `floors` may be left out."""
        assert depth > 0
        found = [(np.empty(0, dtype=np.int64), np.empty(0)) for _ in queries]
        for near in self._near(queries, found, depth, mask, floors):
            for number, rows in enumerate(near):
                scores = self.exact(rows, queries[number])
                found[number] = self._merge(found[number], rows, scores, depth)
        if self._graph is not None:
            self._complete(found, queries, depth, mask, floors)
        return found

    def exact(self, rows: Rows, query: Floats) -> Doubles:
        """The inner products of a query with the vectors in these rows, in float64."""
        # einsum and not a matrix product: BLAS sums a row differently depending on where it lies.
        stored, asked = self.vectors[rows].astype(np.float64), query.astype(np.float64)
        products: Doubles = np.einsum("ij,j->i", stored, asked, optimize=False)
        return products

    def _complete(
        self, found: list[Answer], queries: Floats, depth: int, mask: Mask, floors: Doubles
    ) -> None:
        """Answers exactly where the graph met too few."""
        there = len(self.vectors) if mask is None else int(np.count_nonzero(mask))
        short = [n for n, (rows, _) in enumerate(found) if len(rows) < min(depth, there)]
        if short:
            exact = DenseSearch(self.vectors, self._largest_norm, self._ranks, self._block_rows)
            answers = exact.answers(queries[short], depth, mask, floors[short])
            for number, answer in zip(short, answers, strict=True):
                found[number] = answer

    def _near(
        self, queries: Floats, found: list[Answer], depth: int, mask: Mask, floors: Doubles
    ) -> Iterator[Iterator[Rows]]:
        """Block by block, of each query the rows that may be among its best."""
        if mask is not None and np.count_nonzero(mask) * _FEW <= len(mask):
            rows = np.flatnonzero(mask)
            for start in range(0, len(rows), self._block_rows):
                yield iter([rows[start : start + self._block_rows]] * len(queries))
            return
        if self._graph is not None:
            near = self._graph.near(queries, depth)
            yield near if mask is None else (rows[mask[rows]] for rows in near)
            return
        scan = BlasScan(self.vectors, queries, self._largest_norm, mask)
        for first in range(0, len(self.vectors), self._block_rows):
            reached = np.array([s[-1] if len(s) == depth else -np.inf for _, s in found])
            least = np.maximum(floors, reached)
            yield scan(first, min(self._block_rows, len(self.vectors) - first), depth, least)

    def _merge(self, kept: Answer, rows: Rows, scores: Doubles, depth: int) -> Answer:
        if not len(rows):
            return kept
        rows, scores = np.concatenate([kept[0], rows]), np.concatenate([kept[1], scores])
        chosen = best(scores, self._ranks(rows), depth)
        return rows[chosen], scores[chosen]


def unusable(vectors: npt.NDArray[np.floating[Any]]) -> Rows:
    """Rows with NaN, infinity, or numbers so large that an inner product would overflow."""
    with np.errstate(over="ignore", invalid="ignore"):
        squares = np.einsum("ij,ij->i", vectors, vectors, dtype=np.float32, casting="same_kind")
    return np.flatnonzero(~np.isfinite(squares))


def check_vectors(folder: Path, about: DenseField, rows: int) -> None:
    """Refuses vectors of another shape or type than is stated."""
    with refusing(folder, VECTORS):
        vectors = mapped(folder / VECTORS, folder)
        shaped(vectors, (rows, about.dimension), np.dtype(about.settings.dtype).str)
