"""Making a segment: documents and their vectors are appended block by block, and recorded.

A segment under construction is where it will stay, in `segments/NUMBER`, and counts for nothing
until a manifest names it. `progress.json` says what of its files has reached the disk: building
resumes from there. What takes no encoder (the order of ids, columns, lists, BM25) is made in the
end, and is made again where that was interrupted.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from isthmus.config.output import write_json, writing
from isthmus.config.sealed_json import UnreadableError, read_mapping, sealed
from isthmus.indexes.bm25.builder import MEMORY, build_postings, merge_postings
from isthmus.indexes.bm25.postings import Source
from isthmus.indexes.columns import build_columns, write_columns
from isthmus.indexes.documents import STREAM as DOCUMENT_STREAM
from isthmus.indexes.documents import DocumentBuilder
from isthmus.indexes.fields import field_builder, is_whole, of_type
from isthmus.indexes.integrity import StoredFile, described
from isthmus.indexes.manifest import (
    DOCUMENTS,
    METADATA,
    PASSAGES,
    SEGMENTS,
    Bm25Field,
    Manifest,
    SegmentAbout,
    parts_of,
    settle_names,
)
from isthmus.indexes.passages import STREAM as PASSAGE_STREAM
from isthmus.indexes.passages import PassageBuilder
from isthmus.indexes.segment import Segment, part_shape
from isthmus.indexes.vectors import FieldBuilder
from isthmus.progress import Bar
from isthmus.records import Document, Passage

PROGRESS = "progress.json"
_COPIED = 4096  # documents of a segment that are copied at a time


class SegmentBuilder:
    """A segment under construction; a later one of the same job resumes from what was recorded."""

    def __init__(
        self,
        index: Path,
        name: str,
        manifest: Manifest,
        job: str,
        memory: float = MEMORY,
        folder: Path | None = None,
    ) -> None:
        """Of an index's segment of this name; it is made in `folder` where one is given."""
        self.name = name
        self.folder = folder or index / SEGMENTS / name
        self._index = index
        self._manifest = manifest
        self._job = job
        self._memory = memory
        with writing(index):
            recorded = recorded_progress(self.folder, manifest, job)
            if recorded is None:
                shutil.rmtree(self.folder, ignore_errors=True)
                self.folder.mkdir(parents=True)
                recorded = {}
            self.documents: int = recorded.get("count", {}).get("documents", 0)
            self._store = DocumentBuilder(self.folder / DOCUMENTS, recorded.get(DOCUMENTS, {}))
            self._passages = None
            if manifest.passages is not None:
                self._passages = PassageBuilder(self.folder / PASSAGES, recorded.get(PASSAGES, {}))
            self._fields: dict[str, FieldBuilder] = {
                field: field_builder(self.folder / field, about, recorded.get(field, {}))
                for field, about in manifest.fields.items()
                if not isinstance(about, Bm25Field)
            }

    def add(
        self, documents: Sequence[Document], rows: Sequence[Document], vectors: Mapping[str, Any]
    ) -> None:
        """Appends one block: documents, their passages (or they again), and vectors by field."""
        with writing(self._index):
            # What is refused is so before any part has taken its share of the block.
            ready = {
                name: one.checked(rows, of_type(self._manifest.fields[name], vectors[name]))
                for name, one in self._fields.items()
            }
            self._store.add(documents)
            if self._passages is not None:
                passages = [one for one in rows if isinstance(one, Passage)]
                assert len(passages) == len(rows)
                self._passages.add(self.documents, passages)
            for name, builder in self._fields.items():
                builder.append(ready[name])
            self.documents += len(documents)

    def record(self) -> None:
        """Brings all that was added to the disk; once this returns, no crash can undo it."""
        with writing(self._index):
            parts: dict[str, Any] = {DOCUMENTS: self._store.flush()}
            if self._passages is not None:
                parts[PASSAGES] = self._passages.flush()
            parts |= {name: builder.flush() for name, builder in self._fields.items()}
            self._write_progress(parts)

    def added(self) -> Iterator[Document]:
        """The documents that are recorded."""
        from isthmus.indexes.documents import read_stream

        yield from read_stream(self.folder / DOCUMENTS, self.documents)

    def absorb(self, segment: Segment) -> None:
        """Appends the living documents of another segment with all their vectors."""
        living = np.flatnonzero(segment.lives)
        readers = {name: segment.vectors(name) for name in self._fields}
        with Bar("merging", len(living), "documents") as bar:
            for first in range(0, len(living), _COPIED):
                rows = living[first : first + _COPIED]
                documents = segment.documents.documents(rows)
                inner = rows if segment.passages is None else segment.passages.of(rows)
                read: Sequence[Document] = documents
                if segment.passages is not None:
                    read = segment.passages.passages(inner)
                vectors = {name: reader.take(inner) for name, reader in readers.items()}
                self.add(documents, read, vectors)
                bar.advance(len(rows))

    def finish(self, merged: Sequence[Segment] = ()) -> SegmentAbout:
        """The finished segment; BM25 takes its postings from segments that were merged into it."""
        with writing(self._index):
            store = self._store.finish()
            passages = None if self._passages is None else self._passages.finish(store)
            columns = self.folder / METADATA
            columns.mkdir(exist_ok=True)
            write_columns(columns, build_columns(store.metadata()))
            counts = {name: builder.finish() for name, builder in self._fields.items()}
            for name, about in self._manifest.fields.items():
                if isinstance(about, Bm25Field):
                    sources = [Source(one.part(name), one.lives) for one in merged]
                    folder = self.folder / name
                    counts[name] = (
                        merge_postings(folder, sources, self._memory)
                        if sources
                        else build_postings(folder, about, store, self._memory)
                    )
            about_it = SegmentAbout(
                name=self.name,
                documents=len(store),
                passages=None if passages is None else len(passages),
                fields={name: counts[name] for name in self._manifest.fields},
            )
            files: dict[str, StoredFile] = {}
            for part in parts_of(self._manifest):
                files |= part_files(self.folder, part, self._manifest, about_it)
            settle(self.folder)
        return about_it.model_copy(update={"files": files})

    def close(self) -> None:
        """Closes its files; what was recorded can be resumed."""
        for builder in (self._store, self._passages, *self._fields.values()):
            if builder is not None:
                builder.close()

    def _write_progress(self, parts: Mapping[str, Any]) -> None:
        progress = {"job": self._job, "count": {"documents": self.documents}, **parts}
        write_json(self.folder / PROGRESS, sealed(progress))


def recorded_progress(
    folder: Path, manifest: Manifest, job: str
) -> dict[str, dict[str, int]] | None:
    """What earlier work of this job recorded of a segment; None unless its files hold all of it."""
    try:
        progress = read_mapping(folder / PROGRESS)
        if progress.pop("job") != job:
            return None
        streams = {DOCUMENTS: DOCUMENT_STREAM}
        if manifest.passages is not None:
            streams[PASSAGES] = PASSAGE_STREAM
        vectors = {n: one for n, one in manifest.fields.items() if not isinstance(one, Bm25Field)}
        if progress.keys() != {"count", *streams, *vectors}:
            return None
        numbers = (number for counts in progress.values() for number in counts.values())
        if not all(type(number) is int and 0 <= number < 2**53 for number in numbers):
            return None
        for part, stream in streams.items():
            if (folder / part / stream).stat().st_size < progress[part]["offset"]:
                return None
        if not all(is_whole(folder / n, one, progress[n]) for n, one in vectors.items()):
            return None
        return progress if progress["count"]["documents"] else None
    except (UnreadableError, OSError, KeyError, TypeError, AttributeError):
        return None


def part_files(
    folder: Path, part: str, manifest: Manifest, about: SegmentAbout
) -> dict[str, StoredFile]:
    """What vouches for the finished files of a part, by their names in the segment."""
    names = sorted(file.name for file in (folder / part).iterdir() if is_final(file))
    found = described(folder / part, names, part_shape(manifest, about, part))
    return {f"{part}/{name}": stored for name, stored in found.items()}


def is_final(file: Path) -> bool:
    """Whether a file of a part is no remains of its making."""
    making = file.name.endswith(".gathered") or file.name.startswith("spilled-")
    return file.is_file() and not making and file.name != PROGRESS


def settle(folder: Path) -> None:
    """Brings every file below a folder to the disk, and their names."""
    for place, _, names in os.walk(folder):
        for name in names:
            with Path(place, name).open("rb") as stream:
                os.fsync(stream.fileno())
        settle_names(Path(place))
    settle_names(folder.parent)
