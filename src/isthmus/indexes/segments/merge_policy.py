"""Which segments become one, and how: their living documents in order, in a segment built anew."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from isthmus.indexes.arrays import mapped
from isthmus.indexes.construction import builder_for
from isthmus.indexes.dense.index import VECTORS
from isthmus.indexes.manifest import Description, Manifest
from isthmus.indexes.segments.index import Part

_TOGETHER = 8  # segments, of like size if possible
_BLOCK = 8192


class Source(NamedTuple):
    """A segment to merge: its folder, and which of its documents live."""

    folder: Path
    part: Part


def to_merge(living: Sequence[int], rows: Sequence[int]) -> range | None:
    """The neighbours that should become one: many, none above all others; or one mostly deleted.

    Segments stay in the order in which documents came. A document that is copied ends in a segment
    at least twice as large, so that it is copied seldom.
    """
    sizes = [_size(count) for count in living]
    for size in sorted(set(sizes)):
        first = 0
        for small, run in groupby(sizes, key=size.__ge__):
            last = first + len(list(run))
            counts = living[first:last]
            if small and len(counts) >= _TOGETHER and 2 * max(counts) <= sum(counts):
                return range(first, last)
            first = last
    wasted = (place for place, count in enumerate(living) if 2 * count < rows[place])
    place = next(wasted, None)
    return None if place is None else range(place, place + 1)


def _size(documents: int) -> int:
    """Which power of eight it is near to."""
    return documents.bit_length() // 3


def merge(
    folder: Path,
    description: Description,
    sources: Sequence[Source],
    stopped: Callable[[], bool],
) -> bool:
    """Builds the segment of all living documents of others; False when it was stopped before."""
    if description.kind == "bm25":
        return _merge_bm25(folder, description, sources, stopped)
    with builder_for(folder, description) as builder:
        for source in sources:
            first = 0
            for vectors in _vectors(source.folder, description):
                last = first + vectors.shape[0]
                rows = source.part.rows
                rows = rows[np.searchsorted(rows, first) : np.searchsorted(rows, last)]
                for start in range(0, len(rows), _BLOCK):
                    if stopped():
                        return False
                    block = rows[start : start + _BLOCK]
                    builder.add(source.part.store.documents(block), vectors[block - first])
                first = last
        builder.finish({})
        return True


def _merge_bm25(
    folder: Path,
    description: Description,
    sources: Sequence[Source],
    stopped: Callable[[], bool],
) -> bool:
    from isthmus.indexes.bm25.builder import Bm25Builder

    with Bm25Builder(folder, description) as builder:
        for source in sources:
            rows = source.part.rows
            for start in range(0, len(rows), _BLOCK):
                if stopped():
                    return False
                builder.copy(source.part.store.documents(rows[start : start + _BLOCK]))
            builder.include(source.folder, source.part.lives)
        builder.finish({})
        return True


def _vectors(folder: Path, description: Description) -> Iterator[Any]:
    """All vectors of a segment as they are stored, some rows at a time."""
    if description.kind == "dense":
        yield mapped(folder / VECTORS, folder)
        return
    from isthmus.indexes.inverted.forward import weighed_rows

    yield from weighed_rows(folder)


def describe(manifest: Manifest) -> Description:
    """What a segment of this index is to become."""
    return Description(**{name: getattr(manifest, name) for name in Description.model_fields})
