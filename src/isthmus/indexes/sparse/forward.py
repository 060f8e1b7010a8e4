"""The rows of an inverted index again: what each document weighs, read back from the lists."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import scipy.sparse

from isthmus.indexes.documents import Rows
from isthmus.indexes.manifest import Layout, SparseField, SparseSettings
from isthmus.indexes.sparse.lists import Array, mapped_part
from isthmus.indexes.sparse.quantisation import searched

POSTINGS = 2**22  # read at a time
KEPT = 2**24  # weights of rows that are in memory at a time


def weighed_rows(
    folder: Path, about: SparseField, layout: Layout, rows: int
) -> Iterator[scipy.sparse.csr_matrix]:
    """All rows of a field in their order, some at a time, with weights that a builder takes.

    The lists are read once for every `KEPT` weights, so that memory stays bounded.
    """
    count = max(1, rows * KEPT // max(1, layout.postings))
    numbers_of = mapped_part(folder, "rows")
    postings = StoredPostings(folder, about.dimension, layout)
    for first in range(0, rows, count):
        size = min(count, rows - first)
        nothing = np.empty(0, dtype=np.int64)
        found = [(nothing, nothing, nothing)]
        for terms, positions, weights in postings:
            numbers = numbers_of[positions].astype(np.int64) - first
            here = np.flatnonzero((numbers >= 0) & (numbers < size))
            found.append((weights[here], numbers[here], terms[here]))
        values, numbers, within = (np.concatenate(one) for one in zip(*found, strict=True))
        # A weight that took several postings is their sum.
        matrix = scipy.sparse.coo_matrix(
            (values.astype(np.float64), (numbers, within)), (size, about.dimension)
        ).tocsr()
        matrix.data = _before_quantising(matrix.data, about.settings)
        yield matrix


class SparseRows:
    """The rows of a segment once more, taken in ascending order.

    As search multiplies them they are in whole numbers, if the field has those.
    """

    def __init__(
        self, folder: Path, about: SparseField, layout: Layout, rows: int, searched: bool = False
    ) -> None:
        self._about = about
        self._searched = searched
        self._parts = weighed_rows(folder, about, layout, rows)
        self._first, self._part = 0, next(self._parts)

    def take(self, rows: Rows) -> scipy.sparse.csr_matrix:
        """The weights of these rows, none of which lies before those of an earlier call."""
        found = []
        while True:
            last = self._first + self._part.shape[0]
            here, rows = np.split(rows, [int(np.searchsorted(rows, last))])
            found.append(self._part[here - self._first])
            if not len(rows):
                return self._as_wanted(scipy.sparse.vstack(found, format="csr"))
            self._first, self._part = last, next(self._parts)

    def _as_wanted(self, matrix: scipy.sparse.csr_matrix) -> scipy.sparse.csr_matrix:
        if not self._searched:
            return matrix
        names = [f"row {number}" for number in range(matrix.shape[0])]
        found: scipy.sparse.csr_matrix = searched(
            matrix, self._about.settings, self._about.dimension, names
        )
        return found


class StoredPostings:
    """Term, position and weight of all postings, some at a time, in no order."""

    def __init__(self, folder: Path, vocabulary: int, layout: Layout) -> None:
        lengths = mapped_part(folder, "list_lengths").astype(np.int64)
        terms = np.repeat(np.arange(vocabulary), np.diff(mapped_part(folder, "term_lists")))
        firsts = mapped_part(folder, "list_blocks").astype(np.int64) * layout.block
        long = lengths >= layout.long_from
        self._short = terms[~long], firsts[~long], lengths[~long]
        self._long = terms[long], firsts[long], lengths[long]
        self._offsets = mapped_part(folder, "offsets")
        self._weights = mapped_part(folder, "weights")
        self._masks = mapped_part(folder, "cell_masks")
        self._masked = mapped_part(folder, "masked_weights")

    def __iter__(self) -> Iterator[tuple[Array, Array, Array]]:
        terms, firsts, lengths = self._short
        for part, places in _parts(lengths):
            positions = self._offsets[places] + np.repeat(firsts[part], lengths[part])
            yield np.repeat(terms[part], lengths[part]), positions, self._weights[places]
        terms, firsts, lengths = self._long
        for part, places in _parts(lengths):
            bits = np.unpackbits(self._masks[part].view(np.uint8), axis=1, bitorder="little")
            records, inside = np.nonzero(bits)
            yield terms[part][records], firsts[part][records] + inside, self._masked[places]


def _parts(lengths: Array) -> Iterator[tuple[slice, slice]]:
    """Lists of about `POSTINGS` together, and where their postings lie."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    cuts = np.searchsorted(ends, np.arange(POSTINGS, total, POSTINGS)).tolist()
    for start, stop in pairwise([0, *cuts, len(lengths)]):
        if start < stop:
            yield slice(start, stop), slice(int(ends[start] - lengths[start]), int(ends[stop - 1]))


def _before_quantising(weights: Array, settings: SparseSettings) -> Array:
    """Weights that are stored as these once more; in the middle of what floor takes down to one."""
    if settings.weights == "float":
        return weights
    return (weights + (0.5 if settings.rounding == "floor" else 0)) / settings.scale
