"""Exact sparse search: inner products of term weights, from an inverted index.

Scores are sums of products of whole numbers, exact whatever the order they are added in. With
float weights the products are exact in float64 and are added in the order of terms, so that they
too depend on nothing but the two vectors.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from isthmus.indexes.arrays import best, usable_cores
from isthmus.indexes.documents import DocumentStore
from isthmus.indexes.index import Answer, VectorIndex
from isthmus.indexes.inverted.lists import (
    Allowed,
    Array,
    Lists,
    Plan,
    Postings,
    Shape,
    mapped_part,
)
from isthmus.indexes.inverted.quantisation import Rows, quantised
from isthmus.indexes.manifest import Manifest
from isthmus.indexes.verification import read_manifest

BLOCKS_APIECE = 64  # fewer are not worth another thread
_NOTHING: Answer = np.empty(0, dtype=np.int64), np.empty(0)


class InvertedIndex(VectorIndex):
    """Lists of documents per term, memory-mapped; those without a query's terms are left out."""

    def __init__(
        self, manifest: Manifest, store: DocumentStore, folder: Path, threads: int | None = None
    ) -> None:
        assert manifest.layout is not None
        self.manifest = manifest
        self.store = store
        self._threads = threads or usable_cores()
        self._rows = mapped_part(folder, "rows")
        self._lists = Lists(*(mapped_part(folder, name) for name in Lists._fields))
        self._postings = Postings(*(mapped_part(folder, name) for name in Postings._fields))
        self._shape = Shape(len(store), manifest.layout.block, manifest.layout.long_from)

    @classmethod
    def open(cls, folder: Path, threads: int | None = None) -> InvertedIndex:
        """The index in a folder; nothing but the manifest is read yet; threads: all cores."""
        manifest = read_manifest(folder, "inverted")
        return cls(manifest, DocumentStore(folder), folder, threads)

    def prepared(self, vectors: Any, query_ids: Sequence[str]) -> Rows:
        """The queries as `answers` takes them; `vectors` is a sparse matrix of scipy."""
        assert vectors.shape[0] == len(query_ids)
        assert self.manifest.inverted is not None
        assert self.manifest.dimension is not None
        names = [f"query {query_id!r}" for query_id in query_ids]
        return quantised(vectors, self.manifest.inverted, self.manifest.dimension, names)

    def answers(
        self,
        queries: Rows,
        depth: int,
        among: Collection[str] | None = None,
        floors: npt.NDArray[np.float64] | None = None,
    ) -> list[Answer]:
        """Rows and scores of what `search` answers; lower scores than `floors` may be left out."""
        assert depth > 0
        count = len(queries.starts) - 1
        allowed = self._allowed(among)
        # Many queries go side by side; few are shared out, each thread with blocks of its own.
        blocks = -(-len(self) // self._shape.block)
        shares = max(1, self._threads // max(1, count))
        shares = min(shares, max(1, blocks // BLOCKS_APIECE))

        def answer(number: int) -> Answer:
            inner = slice(queries.starts[number], queries.starts[number + 1])
            terms, weights = queries.terms[inner], queries.weights[inner]
            floor = 0.0 if floors is None else float(floors[number])
            return self._answer(terms, weights, depth, allowed, shares, floor)

        if self._threads == 1 or count == 1:
            return [answer(number) for number in range(count)]
        with ThreadPoolExecutor(min(self._threads, max(1, count))) as pool:
            return list(pool.map(answer, range(count)))

    def _answer(
        self,
        terms: Array,
        weights: Array,
        depth: int,
        allowed: Allowed,
        shares: int,
        floor: float,
    ) -> Answer:
        from isthmus.indexes.inverted import kernels  # brings numba, which opening does without

        exact, least = self._arithmetic(terms, weights)
        if exact is not np.float64:  # where sums would depend on it
            strong_first = np.argsort(-weights.astype(exact))
            terms, weights = terms[strong_first], weights[strong_first]
        weights = weights.astype(exact)
        # A floor beyond what this type holds is above every score.
        highest = np.inf if exact is np.float64 else np.iinfo(exact).max
        floors = np.full(shares, min(max(least, floor), highest), dtype=exact)
        fixed = self._postings, self._shape, allowed, floors
        if shares == 1:
            found, scores = kernels.search(terms, weights, self._lists, *fixed, depth)
        else:
            query: Plan = kernels.plan(terms, weights, self._lists, self._shape)
            order = kernels.in_order(query.totals)

            def scan(share: int) -> tuple[Array, Array]:
                blocks = np.ascontiguousarray(order[share::shares])
                return kernels.scan(query, blocks, *fixed, share, depth)

            with ThreadPoolExecutor(shares) as pool:
                parts = list(pool.map(scan, range(shares)))
            found, scores = (np.concatenate(part) for part in zip(*parts, strict=True))
        if not len(found):
            return _NOTHING
        rows = self._rows[found].astype(np.int64)
        chosen = best(scores.astype(np.float64), self.store.ranks[rows], depth)
        return rows[chosen], scores[chosen].astype(np.float64)

    def _arithmetic(self, terms: Array, weights: Array) -> tuple[type[Any], float]:
        """The smallest type that holds every sum, and the least score that is not nothing."""
        if weights.dtype == np.float32:
            return np.float64, float(np.nextafter(0, 1))
        # A weight may be spread over several lists, and the bounds of cells are rounded up.
        largest = int(weights.max(initial=0)) * len(terms) * self._largest_bound * 4
        return (np.int32 if largest < 2**31 else np.int64), 1

    @cached_property
    def _largest_bound(self) -> int:
        return int(self._lists.list_bounds.max(initial=0))

    def _allowed(self, among: Collection[str] | None) -> Allowed:
        if among is None:
            return Allowed(np.empty(0, np.bool_), np.empty(0, np.bool_))
        chosen = np.zeros(len(self), dtype=np.bool_)
        chosen[self.store.rows(among)] = True
        documents = chosen[self._rows]
        firsts = np.arange(0, len(self), self._shape.block)
        return Allowed(documents, np.logical_or.reduceat(documents, firsts))
