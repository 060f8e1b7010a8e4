"""Which segments become one, and how: their living documents in order, in a segment built anew."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path

from isthmus.indexes.kinds import builder_for
from isthmus.indexes.manifest import Description, Manifest
from isthmus.indexes.segments.held import Held

TOGETHER = 8  # segments, of like size if possible


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
            if small and len(counts) >= TOGETHER and 2 * max(counts) <= sum(counts):
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
    segments: Sequence[Held],
    stopped: Callable[[], bool],
) -> bool:
    """Builds the segment of all living documents of others; False when it was stopped before."""
    with builder_for(folder, description) as builder:
        if not all(builder.absorb(one.folder, one.part, stopped) for one in segments):
            return False
        builder.finish({})
        return True


def describe(manifest: Manifest) -> Description:
    """The description of new segments of this index."""
    return Description(**{name: getattr(manifest, name) for name in Description.model_fields})
