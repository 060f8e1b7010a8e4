"""One index built by many machines: each makes whole indexes of stretches of the corpus.

A stretch becomes a segment, an index folder like any other, so that what comes out is an index in
segments, which every machine opens by itself. Until all are there they lie in
`.NAME.building/shards/`; work that was interrupted goes on with those that are missing.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from isthmus.cluster import Cluster, Task
from isthmus.config.output import publish, write_json, write_snapshot, writing
from isthmus.config.sealed_json import UnreadableError, read_mapping
from isthmus.errors import InputError
from isthmus.indexes.construction import refuse_empty
from isthmus.indexes.documents import blocks
from isthmus.indexes.manifest import (
    PLAN,
    SEGMENTS,
    Description,
    Manifest,
    Segment,
    replace_manifest,
    workplace,
)
from isthmus.indexes.verification import read_manifest
from isthmus.progress import Bar, notice
from isthmus.records import Document

T = TypeVar("T")
Fill = Callable[[list[Document], Path, Description], T]
"""Makes an index of some documents in a folder; runs on any machine of the cluster."""


class ShardedBuilder:
    """Has the machines of a cluster make an index of documents, `size` of them in a segment."""

    def __init__(self, cluster: Cluster, folder: Path, description: Description, size: int) -> None:
        self._cluster = cluster
        self._folder = folder.absolute()
        self._description = description
        self._size = size
        self._index = workplace(self._folder) / "shards"
        self._segments: list[Segment] = []
        self._prepare()

    def add(self, documents: Iterable[Document], fill: Fill[T]) -> list[T]:
        """Makes segments of all documents, in their order, but for those that are there already.

        What `fill` returned for each of them comes back.
        """
        results = []
        with Bar(f"indexing {self._description.corpus.spec}", None, "documents") as bar:
            tasks = self._missing(documents, fill)
            for made, result in self._cluster.map(tasks, self._index, on_gpus=True):
                bar.advance(made)
                results.append(result)
        return results

    def finish(self, request: Mapping[str, Any]) -> Path:
        """The finished index under its final name; `request` is what was asked for."""
        documents = sum(segment.documents for segment in self._segments)
        refuse_empty(documents, self._description)
        with writing(self._folder):
            write_snapshot(self._index, "index", request, results={"documents": documents})
            manifest = Manifest(
                **dict(self._description), documents=documents, segments=self._segments, files={}
            )
            replace_manifest(self._index, manifest)
            publish(self._index, self._folder, replace=False)
            shutil.rmtree(workplace(self._folder), ignore_errors=True)
        return self._folder

    def _missing(
        self, documents: Iterable[Document], fill: Fill[T]
    ) -> Iterator[Task[tuple[int, T]]]:
        found = 0
        for number, shard in enumerate(blocks(documents, self._size), start=1):
            segment = Segment(name=f"{number:06}", documents=len(shard))
            self._segments.append(segment)
            place = self._index / SEGMENTS / segment.name
            if _is_whole(place):
                found += len(shard)
            else:
                yield _build, (shard, place, self._description, fill)
        if found:
            notice(f"{found:,} documents were indexed already")

    def _prepare(self) -> None:
        """Keeps the segments of earlier work only where it was the same work."""
        plan = {"identity": self._description.identity(), "size": self._size}
        file = workplace(self._folder) / PLAN
        with writing(self._folder):
            if not _holds(file, plan):
                shutil.rmtree(workplace(self._folder), ignore_errors=True)
            (self._index / SEGMENTS).mkdir(parents=True, exist_ok=True)
            write_json(file, plan)


def _build(
    documents: list[Document], place: Path, description: Description, fill: Fill[T]
) -> tuple[int, T]:
    """Makes one segment beside its place and moves it there; its size, and what `fill` returned."""
    # Under a name of its own: a machine that was given up for dead may still be at work on it.
    attempt = place.parents[2] / f"attempt-{place.name}-{secrets.token_hex(4)}"
    try:
        with writing(place):
            result = fill(documents, attempt, description)
            _move(attempt, place)
    finally:
        for left in (attempt, workplace(attempt)):
            shutil.rmtree(left, ignore_errors=True)
    return len(documents), result


def _move(attempt: Path, place: Path) -> None:
    try:
        attempt.rename(place)
    except OSError:
        if not place.exists():  # else another attempt came first, with the same
            raise


def _is_whole(segment: Path) -> bool:
    if not segment.exists():
        return False
    try:
        read_manifest(segment)
    except InputError:
        shutil.rmtree(segment)
        return False
    return True


def _holds(file: Path, value: object) -> bool:
    try:
        return bool(read_mapping(file) == value)
    except UnreadableError:
        return False
