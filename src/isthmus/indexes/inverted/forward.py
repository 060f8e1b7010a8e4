"""The rows of an inverted index again: what each document weighs, read back from the lists."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import scipy.sparse

from isthmus.indexes.inverted.lists import CELL, CELLS, GROUP, Array
from isthmus.indexes.manifest import InvertedSettings, read_manifest

_POSTINGS = 2**22  # read at a time
_KEPT = 2**24  # weights of rows that are in memory at a time


def weighed_rows(folder: Path) -> Iterator[scipy.sparse.csr_matrix]:
    """All rows of an index in their order, some at a time, with weights that an index takes.

    The lists are read once for every `_KEPT` weights, so that memory stays bounded.
    """
    manifest = read_manifest(folder, "inverted")
    assert manifest.layout is not None
    assert manifest.inverted is not None
    assert manifest.dimension is not None
    count = max(1, manifest.documents * _KEPT // max(1, manifest.layout.postings))
    rows = _mapped(folder, "rows")
    lists = _mapped(folder, "term_lists")
    terms = np.repeat(np.arange(manifest.dimension), np.diff(lists))
    firsts = _mapped(folder, "list_blocks").astype(np.int64) * manifest.layout.block
    lengths = _mapped(folder, "list_lengths").astype(np.int64)
    offsets, weights = _mapped(folder, "offsets"), _mapped(folder, "weights")
    ends = np.cumsum(lengths)
    cuts = np.searchsorted(ends, np.arange(_POSTINGS, len(offsets), _POSTINGS))
    for first in range(0, manifest.documents, count):
        size = min(count, manifest.documents - first)
        nothing = np.empty(0, dtype=np.int64)
        found = [(weights[:0], nothing, nothing)]
        for part in np.split(np.arange(len(lengths)), cuts):
            if not len(part):
                continue
            postings = slice(ends[part[0]] - lengths[part[0]], ends[part[-1]])
            positions = _positions(offsets[postings]) + np.repeat(firsts[part], lengths[part])
            numbers = rows[positions].astype(np.int64) - first
            here = np.flatnonzero((numbers >= 0) & (numbers < size))
            within = np.repeat(terms[part], lengths[part])[here]
            found.append((weights[postings][here], numbers[here], within))
        values, numbers, within = (np.concatenate(one) for one in zip(*found, strict=True))
        # A weight that took several postings is their sum.
        matrix = scipy.sparse.coo_matrix(
            (values.astype(np.float64), (numbers, within)), (size, manifest.dimension)
        ).tocsr()
        matrix.data = _before_quantising(matrix.data, manifest.inverted)
        yield matrix


def _positions(offsets: Array) -> Array:
    """Where in its block each offset points to: cells of a group lie side by side."""
    group, inside = np.divmod(offsets.astype(np.int64), GROUP)
    positions: Array = group * GROUP + inside % CELLS * CELL + inside // CELLS
    return positions


def _before_quantising(weights: Array, settings: InvertedSettings) -> Array:
    """Weights that are stored as these once more; in the middle of what floor takes down to one."""
    if settings.weights == "float":
        return weights
    return (weights + (0.5 if settings.rounding == "floor" else 0)) / settings.scale


def _mapped(folder: Path, name: str) -> Array:
    return np.asarray(np.load(folder / f"{name}.npy", mmap_mode="r"))
