"""An index in segments, searched by many machines: each holds some of the segments open."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from isthmus.cluster import Cluster, current
from isthmus.indexes.index import Index
from isthmus.indexes.segments.index import SegmentedIndex
from isthmus.indexes.segments.living import best_of
from isthmus.progress import notice
from isthmus.records import Ranking


def spread(index: Index, folder: Path, hnsw: bool = False) -> Index:
    """The index as it is; or, where a cluster is in use, held open by its machines.

    An index in one piece, which one machine searches as well as many, stays here.
    """
    cluster = current()
    if cluster is None:
        return index
    if isinstance(index, SegmentedIndex) and index.manifest.segments:
        return ServedIndex(cluster, folder, index, hnsw)
    notice(f"{folder} is in one piece: it is searched here, not on the cluster")
    return index


class ServedIndex(Index):
    """Answers as the index that it was made of, from segments that lie open all over a cluster."""

    def __init__(
        self, cluster: Cluster, folder: Path, index: SegmentedIndex, hnsw: bool = False
    ) -> None:
        assert index.manifest.segments is not None
        self._cluster = cluster
        self.manifest = index.manifest
        self.store = index.store
        segments = index.manifest.segments
        shares = min(len(segments), cluster.places())
        # As they are in this moment's manifest, whatever a writer makes of the index since.
        parts = [
            self.manifest.model_copy(update={"segments": segments[share::shares]})
            for share in range(shares)
        ]
        place = folder.absolute()
        self._served = cluster.serve([(SegmentedIndex.of, (place, part, hnsw)) for part in parts])

    def search(
        self,
        vectors: Any,
        depth: int,
        query_ids: Sequence[str],
        among: Collection[str] | None = None,
    ) -> list[Ranking]:
        """The `depth` documents of highest inner product per query, equal ones by document id."""
        listed = None if among is None else list(among)
        shared = [self._cluster.share(value) for value in (vectors, list(query_ids), listed)]
        asked = [one.call("search", shared[0], depth, *shared[1:]) for one in self._served]
        answers = [wait() for wait in asked]
        return [
            best_of(query_id, chain.from_iterable(rankings), depth)
            for query_id, rankings in zip(query_ids, zip(*answers, strict=True), strict=True)
        ]
