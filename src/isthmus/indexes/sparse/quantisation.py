"""Term weights as a sparse field keeps them: whole numbers, the strongest terms, no zeros."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse

from isthmus.errors import InputError, MismatchError
from isthmus.indexes.manifest import SparseSettings
from isthmus.indexes.sparse.lists import Array

LARGEST = 2**16 - 1


class Rows(NamedTuple):
    """Vectors by their terms, ascending, and weights; `starts` has one entry more than rows."""

    starts: Array
    terms: Array
    weights: Array


def quantised(
    vectors: Any,
    settings: SparseSettings,
    size: int,
    names: Sequence[str],
    terms: int | None = None,
) -> Rows:
    """Weights of 1 to 65,535 in 16 bits, or float32, of the rows of a sparse matrix of scipy.

    At most `terms` of a row are kept, those of highest weight as it came, of equal ones the lower.

    floor(scale * w) is taken of the exact product, in float64: the float32 number nearest to 0.29
    lies below it and becomes 28. `size` is that of the vocabulary; `names` are for messages.
    """
    if vectors.ndim != 2 or vectors.shape[1] != size:
        raise MismatchError(
            f"the vectors have shape {vectors.shape}, not {size:,} weights each, one per term of "
            "the vocabulary",
            "encode queries and documents with the encoder of the index",
        )
    if vectors.format != "csr" or not vectors.has_canonical_format:
        vectors = scipy.sparse.csr_matrix(vectors, copy=True)
        vectors.sum_duplicates()
    rows = Rows(vectors.indptr, vectors.indices.astype(np.int32, copy=False), vectors.data)
    _check(rows, names)
    if terms is not None:
        rows = _strongest(rows, terms)
    values = rows.weights
    if settings.weights == "integer":
        values = values.astype(np.float64) * settings.scale
        values = np.floor(values) if settings.rounding == "floor" else np.rint(values)
        _check_largest(rows, values, settings.scale, names)
    kind = np.uint16 if settings.weights == "integer" else np.float32
    return _chosen(rows._replace(weights=values.astype(kind)), values > 0)


def searched(vectors: Any, settings: SparseSettings, size: int, names: Sequence[str]) -> Any:
    """The rows of a sparse matrix as search multiplies them, in whole numbers if so set."""
    rows = quantised(vectors, settings, size, names)
    parts = (rows.weights, rows.terms, rows.starts)
    return scipy.sparse.csr_matrix(parts, shape=vectors.shape)


def _strongest(rows: Rows, count: int) -> Rows:
    lengths = np.diff(rows.starts)
    numbers = np.repeat(np.arange(len(lengths)), lengths)
    best_first = np.lexsort((rows.terms, -rows.weights.astype(np.float64), numbers))
    places = np.arange(len(rows.terms)) - np.repeat(rows.starts[:-1], lengths)
    kept = np.zeros(len(rows.terms), dtype=np.bool_)
    kept[best_first[places < count]] = True
    return _chosen(rows, kept)


def _chosen(rows: Rows, kept: Array) -> Rows:
    before = np.concatenate([[0], np.cumsum(kept)])
    return Rows(before[rows.starts], rows.terms[kept], rows.weights[kept])


def _check(rows: Rows, names: Sequence[str]) -> None:
    with np.errstate(over="ignore"):
        usable = np.isfinite(rows.weights.astype(np.float32)) & (rows.weights >= 0)
    if not usable.all():
        place = int(np.argmin(usable))
        raise InputError(
            f"{_name(rows, place, names)} has the weight {rows.weights[place]} for term "
            f"{rows.terms[place]}, which is not a finite number of 0 or more",
            "check the encoder: its training may have diverged, or it is a dense one",
        )


def _check_largest(rows: Rows, values: Array, scale: float, names: Sequence[str]) -> None:
    if values.max(initial=0) > LARGEST:
        place = int(np.argmax(values))
        raise InputError(
            f"{_name(rows, place, names)} has the weight {rows.weights[place]} for term "
            f"{rows.terms[place]}: times the scale {scale:g} it is more than {LARGEST:,}",
            f"build the index with a scale that fits (weights up to {LARGEST / scale:g} do at "
            "this one), or with weights=float",
        )


def _name(rows: Rows, place: int, names: Sequence[str]) -> str:
    return names[int(np.searchsorted(rows.starts, place, side="right")) - 1]
