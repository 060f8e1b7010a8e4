"""Exact sparse search: inner products of term weights, from lists of documents per term.

Scores are sums of products of whole numbers, exact whatever the order they are added in. With
float weights the products are exact in float64 and are added in the order of terms, so that they
too depend on nothing but the two vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from isthmus.indexes.arrays import best, usable_cores
from isthmus.indexes.documents import Rows
from isthmus.indexes.manifest import FieldCounts, SparseField
from isthmus.indexes.sparse import quantisation
from isthmus.indexes.sparse.lists import (
    Allowed,
    Array,
    Lists,
    Plan,
    Postings,
    Shape,
    mapped_part,
)
from isthmus.indexes.vectors import Answer, Mask

BLOCKS_APIECE = 64  # fewer are not worth another thread
_NOTHING: Answer = np.empty(0, dtype=np.int64), np.empty(0)


class SparseSearch:
    """Lists of rows per term, memory-mapped; rows without a query's terms are left out."""

    def __init__(
        self,
        folder: Path,
        about: SparseField,
        counts: FieldCounts,
        rows: int,
        ranks: Callable[[Rows], Rows],
        threads: int | None = None,
    ) -> None:
        """The field in a folder; threads: all cores."""
        assert counts.layout is not None
        self._about = about
        self._ranks = ranks
        self._threads = threads or usable_cores()
        self._rows = mapped_part(folder, "rows")
        self._lists = Lists(*(mapped_part(folder, name) for name in Lists._fields))
        self._postings = Postings(*(mapped_part(folder, name) for name in Postings._fields))
        self._shape = Shape(rows, counts.layout.block, counts.layout.long_from)
        self._known: tuple[Mask, Allowed] | None = None  # deleted rows are the same for all

    def prepared(self, vectors: Any, query_ids: Sequence[str]) -> quantisation.Rows:
        """The queries as `answers` takes them; `vectors` is a sparse matrix of scipy."""
        assert vectors.shape[0] == len(query_ids)
        names = [f"query {query_id!r}" for query_id in query_ids]
        about = self._about
        return quantisation.quantised(vectors, about.settings, about.dimension, names)

    def answers(
        self,
        queries: quantisation.Rows,
        depth: int,
        mask: Mask,
        floors: npt.NDArray[np.float64],
    ) -> list[Answer]:
        """The best rows of each query, exactly; scores below the `floors` may be left out."""
        assert depth > 0
        count = len(queries.starts) - 1
        allowed = self._allowed(mask)
        # Many queries go side by side; few are shared out, each thread with blocks of its own.
        blocks = -(-self._shape.documents // self._shape.block)
        shares = max(1, self._threads // max(1, count))
        shares = min(shares, max(1, blocks // BLOCKS_APIECE))

        def answer(number: int) -> Answer:
            inner = slice(queries.starts[number], queries.starts[number + 1])
            terms, weights = queries.terms[inner], queries.weights[inner]
            return self._answer(terms, weights, depth, allowed, shares, float(floors[number]))

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
        from isthmus.indexes.sparse import kernels  # brings numba, which opening does without

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
        ascending = np.argsort(rows)
        rows, scores = rows[ascending], scores[ascending].astype(np.float64)
        chosen = best(scores, self._ranks(rows), depth)
        return rows[chosen], scores[chosen]

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

    def _allowed(self, mask: Mask) -> Allowed:
        if mask is None:
            return Allowed(np.empty(0, np.bool_), np.empty(0, np.bool_))
        if self._known is None or self._known[0] is not mask:
            documents = mask[self._rows]
            firsts = np.arange(0, len(mask), self._shape.block)
            self._known = mask, Allowed(documents, np.logical_or.reduceat(documents, firsts))
        return self._known[1]
