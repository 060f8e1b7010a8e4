"""Brute force: what a right answer is, and how much of it a system found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from benchmarks.sparse_search.vectors import ROWS, Matrix

_ROUNDING = 1e-6  # of sums that float32 does not hold


class Truth(NamedTuple):
    """Per query, how many documents are to be found and the least score of them."""

    counts: np.ndarray
    cuts: np.ndarray


def brute_force(documents: Matrix, queries: Matrix, depths: Sequence[int]) -> dict[int, Truth]:
    """The truth per depth; all documents are scored, some at a time."""
    columns = queries.T.tocsr().astype(np.float64)
    best = np.zeros((0, queries.shape[0]))
    for first in range(0, documents.shape[0], ROWS):
        scores = (documents[first : first + ROWS].astype(np.float64) @ columns).toarray()
        best = np.concatenate([best, scores])
        least = max(0, len(best) - max(depths))
        best = np.partition(best, least, axis=0)[least:]
    best = -np.sort(-best, axis=0)
    found = {}
    for depth in depths:
        counts = np.sum(best[:depth] > 0, axis=0)
        cuts = best[np.maximum(counts, 1) - 1, np.arange(best.shape[1])]
        found[depth] = Truth(counts, cuts)
    return found


def recall(
    documents: Matrix, queries: Matrix, numbers: Sequence[int], rows: Sequence[np.ndarray],
    truth: Truth,
) -> float:  # fmt: skip
    """The mean share of right documents among those found for these queries."""
    shares = []
    for number, found in zip(numbers, rows, strict=True):
        if truth.counts[number] == 0:
            continue
        once = np.unique(np.asarray(found, dtype=np.int64))[: len(found)]
        query = queries[number].toarray().ravel().astype(np.float64)
        scores = documents[once] @ query if len(once) else np.zeros(0)
        right = np.sum(scores >= truth.cuts[number] * (1 - _ROUNDING))
        shares.append(min(right / truth.counts[number], 1))
    return float(np.mean(shares))
