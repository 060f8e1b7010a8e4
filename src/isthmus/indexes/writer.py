"""Changing an index: adding, deleting, merging, new fields, weights; and building one anew.

One protocol for all of it. Segments and files of deleted rows are brought to the disk first. Then
the manifest is replaced, which is the commit: before it nothing has changed, after it everything
has. What only the old manifest named is removed last, or by the next writer. One writer at a time,
any number of readers.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Self

import numpy as np
import xxhash

from isthmus.config.output import only_writer, write_json, writing
from isthmus.config.sealed_json import UnreadableError, read_mapping, sealed
from isthmus.errors import InputError, IsthmusError, MismatchError
from isthmus.indexes.arrays import write_array
from isthmus.indexes.bm25.builder import MEMORY, build_postings
from isthmus.indexes.documents import Rows
from isthmus.indexes.fields import field_builder, is_whole, of_type
from isthmus.indexes.integrity import described
from isthmus.indexes.manifest import (
    PASSAGES,
    SEGMENTS,
    Bm25Field,
    CorpusOrigin,
    FieldAbout,
    FieldCounts,
    Fusion,
    Manifest,
    SegmentAbout,
    read_manifest,
    settle_names,
    updated,
    write_manifest,
)
from isthmus.indexes.passages import PassageBuilder
from isthmus.indexes.segment import Segment
from isthmus.indexes.segment_builder import (
    PROGRESS,
    SegmentBuilder,
    part_files,
    settle,
)
from isthmus.progress import Bar
from isthmus.records import Document, Passage
from isthmus.text.passages import Cut

TOGETHER = 8  # segments that become one, of like size if possible
_NUMBER = re.compile("[0-9]{6,18}")
_AT_ONCE = 1024  # documents whose passages are cut at a time

Encode = Callable[
    [Iterator[list[Document]]], Iterator[tuple[Sequence[Document], Mapping[str, Any]]]
]
"""Blocks of rows to the same blocks with their vectors, by field."""


@dataclass(frozen=True, slots=True)
class Update:
    """What a commit changed: documents new, replaced and deleted, and how many there are now."""

    added: int
    replaced: int
    deleted: int
    documents: int


class IndexWriter:
    """The one writer of an index folder. Nothing counts before `commit` returns."""

    def __init__(
        self,
        folder: Path,
        begin: Manifest | None = None,
        job: str = "",
        memory: float = MEMORY,
    ) -> None:
        """Of the index in a folder; to `begin`, of one that replaces it at the first commit.

        What an interrupted writer of the same job had added is there again.
        """
        if begin is None:
            read_manifest(folder)
        refuse_links(folder)
        self._lock = only_writer(folder)
        self._folder = folder
        self._begin = begin
        self._job = job
        self._memory = memory
        self._builder: SegmentBuilder | None = None
        try:
            self._read()
        except BaseException:
            self._lock.release()
            raise

    @property
    def folder(self) -> Path:
        """Where the index is."""
        return self._folder

    @property
    def is_held(self) -> bool:
        """Whether the folder is still the one that it was opened for."""
        return self._lock.is_held

    @property
    def manifest(self) -> Manifest:
        """The manifest of the last commit, or the one to begin with."""
        return self._manifest

    @property
    def done(self) -> int:
        """How many documents of this job are added, those by an interrupted writer too."""
        building = 0 if self._builder is None else self._builder.documents
        return building + sum(about.documents for about in self._segments_new)

    def complete(self) -> None:
        """Completes what was added, which `commit` does otherwise."""
        self._finish()

    def words(self, field: str) -> int:
        """The number of terms of a BM25 field in all that was completed."""
        return sum(about.fields[field].tokens or 0 for about in self._segments_new)

    def take(self, about: SegmentAbout) -> None:
        """Takes a segment that lies in its place already, as a machine of a cluster made it."""
        self._segments_new.append(about)
        self._gone.append([])

    def add(
        self,
        documents: Sequence[Document],
        rows: Sequence[Document],
        vectors: Mapping[str, Any],
        record: bool = True,
    ) -> None:
        """Takes documents, their passages (or they again), and vectors by field, a row for each.

        Documents whose ids are there already are replaced. When this fails for any reason but the
        documents themselves (a full disk), all that was not committed is given up.
        """
        if not documents:
            return
        ids = {one.id for one in documents}
        assert self._begin is not None or len(ids) == len(documents), "an id comes twice"
        try:
            if not self._written.isdisjoint(ids):
                self._finish()  # a segment has an id once
            builder = self._builder or self._new_builder()
            first = builder.documents
            builder.add(documents, rows, vectors)
            if record:
                builder.record()
            self._note(documents, first)
        except (InputError, MismatchError):
            raise  # before anything was written
        except BaseException:
            self._give_up()
            raise

    def delete(self, ids: Iterable[str]) -> None:
        """Takes documents away; unknown ids are ignored."""
        for document_id in [ids] if isinstance(ids, str) else ids:
            self._forget(document_id)
            self._removed.add(document_id)
            self._digest.update(repr(document_id).encode())

    def missing(self, ids: Collection[str]) -> list[str]:
        """The ids among these that no document would have after a commit."""
        found = set(self._places)
        for segment in self._segments:
            found.update(segment.documents.ids(_living(segment, ids)))
        return [one for one in ids if one not in found - (self._removed - set(self._places))]

    def commit(self, corpus: CorpusOrigin | None = None, fusion: Fusion | None = None) -> Update:
        """Makes all that was done since the last commit count, at once and for good.

        When this fails, the index is what it was, and what was not committed is given up.
        """
        try:
            with writing(self._folder):
                return self._commit(corpus, fusion)
        except BaseException:
            self._give_up()
            raise

    def add_fields(
        self,
        fields: Mapping[str, FieldAbout],
        encode: Encode | None = None,
        cut: tuple[Cut, Callable[[Iterable[Document]], Iterator[Passage]]] | None = None,
        weights: Mapping[str, float] | None = None,
    ) -> None:
        """Gives every segment further fields, and passages where the index has none, and commits.

        Interrupted and called again by the same job, it resumes after the last recorded block.
        """
        assert not self._segments_new
        assert self._builder is None
        passages = self._manifest.passages
        if passages is None and cut is not None:
            passages = cut[0]
        fusion = self._manifest.fusion
        target = updated(
            self._manifest,
            passages=passages,
            fields={**self._manifest.fields, **fields},
            fusion=fusion.model_copy(update={"weights": {**fusion.weights, **(weights or {})}}),
            segments=[],
        )
        abouts = []
        with writing(self._folder):
            for segment in self._segments:
                about = segment.about
                if self._manifest.passages is None and cut is not None:
                    about = _cut(segment, target, cut[1])
                grown = Segment(self._folder, about, target)
                abouts.append(self._grown(grown, target, fields, encode))
            self._publish(updated(target, segments=abouts))

    def merge(self, everything: bool = False) -> None:
        """Puts one segment in the place of several neighbours, where there are many.

        That counts at once; what was added or deleted since the last commit still does not.
        With `everything`, the index becomes one segment, as if built from its living documents.
        """
        while chosen := self._choose(everything):
            first = self._segments.index(chosen[0])
            name = self._free_name()
            builder = SegmentBuilder(self._folder, name, self._manifest, "", self._memory)
            try:
                for segment in chosen:
                    builder.absorb(segment)
                about = builder.finish(merged=chosen)
            finally:
                builder.close()
            others = [one.about for one in self._segments]
            others[first : first + len(chosen)] = [about]
            added = [one.name for one in self._segments_new]
            if self._builder is not None:
                added.append(self._builder.name)
            with writing(self._folder):
                self._publish(updated(self._manifest, segments=others), added)
            everything = False

    def close(self) -> None:
        """Lets others write; what was not committed is given up, but for recorded work of a job."""
        self._close_builder()
        self._lock.release()

    def _read(self) -> None:
        """Starts from what is on the disk."""
        self._manifest = read_manifest(self._folder) if self._begin is None else self._begin
        self._segments = [
            Segment(self._folder, about, self._manifest) for about in self._manifest.segments
        ]
        for segment in self._segments:
            segment.check()  # what is damaged must not be merged into what is not
        self._clear()
        resumable = self._resumable()
        if self._begin is None:
            self._sweep({resumable} if resumable else set())
        if resumable is not None:
            self._builder = self._builder_of(resumable)
            if not self._builder.documents:
                self._close_builder()
            else:
                for number, document in enumerate(self._builder.added()):
                    self._note([document], number)  # does nothing to begin with

    def _clear(self) -> None:
        """Forgets what was not committed."""
        self._removed: set[str] = set()
        self._segments_new: list[SegmentAbout] = []
        self._gone: list[list[int]] = [[]]  # rows of new segments that another one replaces
        self._places: dict[str, tuple[int, int]] = {}  # new segment and row, by id
        self._written: set[str] = set()  # into the segment under construction, deleted or not
        self._digest = xxhash.xxh3_128(self._manifest.corpus.fingerprint.encode())

    def _give_up(self) -> None:
        self._close_builder()
        self._lock.check()  # what is there now may be another's
        with suppress(IsthmusError, OSError):
            self._read()

    def _close_builder(self) -> None:
        if self._builder is not None:
            with suppress(OSError):  # a full disk
                self._builder.close()
            self._builder = None

    def _resumable(self) -> str | None:
        """The segment that an interrupted writer of this job left."""
        counts = self._committed()  # killed right after its commit, a writer leaves its record too
        for name in _numbers(self._folder) if self._job else ():
            if name in counts:
                continue
            with suppress(UnreadableError):
                if read_mapping(self._folder / SEGMENTS / name / PROGRESS).get("job") == self._job:
                    return name
        return None

    def first_name(self) -> str:
        """The name of the first segment that a cluster makes, the same when its job resumes."""
        return f"{max((int(one) for one in self._committed()), default=0) + 1:06}"

    def _committed(self) -> list[str]:
        """The names of the segments that count now, in an index that is to be replaced too."""
        with suppress(IsthmusError):
            return [about.name for about in read_manifest(self._folder).segments]
        return []

    def _free_name(self) -> str:
        known = [*map(int, _numbers(self._folder)), *(int(one.name) for one in self._segments_new)]
        return f"{max(known, default=0) + 1:06}"

    def _builder_of(self, name: str) -> SegmentBuilder:
        return SegmentBuilder(self._folder, name, self._manifest, self._job, self._memory)

    def _new_builder(self) -> SegmentBuilder:
        self._builder = self._builder_of(self._free_name())
        return self._builder

    def _note(self, documents: Sequence[Document], first: int) -> None:
        """Remembers where new documents are; of those with one id the last counts."""
        if self._begin is not None:
            return  # a corpus has an id once, which finishing its segment sees
        for row, one in enumerate(documents, first):
            self._forget(one.id)
            self._written.add(one.id)
            self._places[one.id] = len(self._segments_new), row
            values = one.id, one.title, one.text, *sorted(one.metadata.items())
            self._digest.update(repr(values).encode())

    def _forget(self, document_id: str) -> None:
        if (place := self._places.pop(document_id, None)) is not None:
            self._gone[place[0]].append(place[1])

    def _finish(self) -> None:
        """Completes the segment under construction."""
        if self._builder is not None and not self._builder.documents:
            self._close_builder()  # what was to begin it was refused
        if self._builder is not None:
            self._segments_new.append(self._builder.finish())
            self._gone.append([])
            self._written.clear()
            self._builder = None

    def _commit(self, corpus: CorpusOrigin | None, fusion: Fusion | None) -> Update:
        self._finish()
        added = set(self._places)
        removed = self._removed - added
        abouts, replaced, deleted = [], 0, 0
        for segment in self._segments:
            again, away = _living(segment, added), _living(segment, removed)
            replaced, deleted = replaced + len(again), deleted + len(away)
            rows = np.union1d(segment.deleted, np.union1d(again, away))
            abouts.append(_less(segment.folder, segment.about, rows))
        for about, gone in zip(self._segments_new, self._gone, strict=False):
            rows = np.array(sorted(gone), dtype=np.int64)
            abouts.append(_less(self._folder / SEGMENTS / about.name, about, rows))
        kept = [about for about in abouts if about.living]
        if self._begin is None and corpus is None:
            changed = bool(added or replaced or deleted)
            print_ = self._digest.hexdigest() if changed else self._manifest.corpus.fingerprint
            corpus = self._manifest.corpus.model_copy(update={"fingerprint": print_})
        manifest = updated(
            self._manifest,
            segments=kept,
            corpus=corpus or self._manifest.corpus,
            fusion=fusion or self._manifest.fusion,
        )
        if self._begin is not None or manifest != self._manifest:
            self._publish(manifest)
        new = sum(one.living for one in self._segments_new) if self._begin else len(added)
        self._begin, self._job = None, ""
        self._clear()
        return Update(new - replaced, replaced, deleted, manifest.documents)

    def _publish(self, manifest: Manifest, busy: Collection[str] = ()) -> None:
        """Makes a manifest the one that counts; segments that are busy are not committed yet."""
        self._lock.check()
        if {about.name for about in manifest.segments} - {one.about.name for one in self._segments}:
            settle_names(self._folder / SEGMENTS)  # which machines of a cluster moved there
            settle_names(self._folder)
        write_manifest(self._folder, manifest)
        if self._begin is not None:
            with suppress(OSError):  # it may not be readable
                settle_names(self._folder.absolute().parent)
        kept = {segment.about.name: segment for segment in self._segments}
        self._manifest = manifest
        self._segments = [
            kept[about.name]
            if about.name in kept and kept[about.name].about == about
            else Segment(self._folder, about, manifest)
            for about in manifest.segments
        ]
        self._sweep(busy)

    def _grown(
        self,
        segment: Segment,
        target: Manifest,
        fields: Mapping[str, FieldAbout],
        encode: Encode | None,
    ) -> SegmentAbout:
        """What vouches for a segment with further fields, once they are on the disk."""
        vectors = {n: one for n, one in fields.items() if not isinstance(one, Bm25Field)}
        counts = dict(segment.about.fields)
        if vectors:
            assert encode is not None
            counts |= self._fill(segment, vectors, encode)
        for name, about in fields.items():
            if isinstance(about, Bm25Field):
                folder = segment.folder / name
                counts[name] = build_postings(folder, about, segment.documents, self._memory)
        about_it = segment.about.model_copy(
            update={"fields": {name: counts[name] for name in target.fields}}
        )
        files = dict(segment.about.files)
        for name in fields:
            files |= part_files(segment.folder, name, target, about_it)
        settle(segment.folder)
        return about_it.model_copy(update={"files": files})

    def _fill(
        self, segment: Segment, fields: Mapping[str, FieldAbout], encode: Encode
    ) -> dict[str, FieldCounts]:
        """Fills new fields of a segment with vectors of its rows."""
        record = segment.folder / next(iter(fields)) / PROGRESS
        recorded = _recorded(record, segment.folder, fields, self._job)
        if not recorded:
            for name in fields:
                shutil.rmtree(segment.folder / name, ignore_errors=True)
        builders = {
            name: field_builder(segment.folder / name, about, recorded.get(name, {}))
            for name, about in fields.items()
        }
        first = next(iter(builders.values()))
        rows = segment.about.rows(next(iter(fields.values())))
        with Bar("encoding", rows, "rows", first.rows) as bar:
            for block, vectors in encode(_after(first.rows, segment.rows(next(iter(fields))))):
                for name, builder in builders.items():
                    given = of_type(fields[name], vectors[name])
                    builder.append(builder.checked(block, given))
                flushed = {name: builder.flush() for name, builder in builders.items()}
                write_json(record, sealed({"job": self._job, "fields": flushed}))
                bar.advance(len(block))
        return {name: builder.finish() for name, builder in builders.items()}

    def _choose(self, everything: bool) -> list[Segment]:
        """The neighbours that should become one: many, none above all others; or one half deleted.

        Segments stay in the order in which documents came. A document that is copied ends in a
        segment at least twice as large, so that it is copied seldom.
        """
        segments = self._segments
        if everything:
            whole = len(segments) == 1 and not len(segments[0].deleted)
            return [] if whole else list(segments)
        sizes = [segment.living.bit_length() // 3 for segment in segments]  # powers of eight
        for size in sorted(set(sizes)):
            first = 0
            for small, run in groupby(sizes, key=size.__ge__):
                last = first + len(list(run))
                counts = [segment.living for segment in segments[first:last]]
                if small and len(counts) >= TOGETHER and 2 * max(counts) <= sum(counts):
                    return segments[first:last]
                first = last
        return [one for one in segments if 2 * one.living < len(one)][:1]

    def _sweep(self, busy: Collection[str]) -> None:
        """Removes what the manifest does not name, except segments that are under construction.

        Readers that opened it earlier keep it: what is mapped outlives its name.
        """
        place = self._folder / SEGMENTS
        named = {about.name: about for about in self._manifest.segments}
        for name in _numbers(self._folder):
            if name not in named and name not in busy:
                _remove(place / name)
        for name, about in named.items():
            for file in _files(place / name):
                inner = file.relative_to(place / name).as_posix()
                if inner not in about.files and not self._is_resumed(place / name, inner):
                    _remove(file)
            for folder, _, _ in os.walk(place / name, topdown=False):
                with suppress(OSError):  # it holds something
                    Path(folder).rmdir()
        for left in (*place.glob(".*"), *self._folder.glob(".*.partial")):
            _remove(left)

    def _is_resumed(self, folder: Path, inner: str) -> bool:
        """Whether a file belongs to a field that this job had begun to fill."""
        part = inner.partition("/")[0]
        if not self._job or part in self._manifest.fields:
            return False
        with suppress(UnreadableError):
            return any(
                read_mapping(record).get("job") == self._job
                for record in folder.glob(f"*/{PROGRESS}")
            )
        return False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def refuse_links(folder: Path) -> None:
    """Refuses a folder with symbolic links, through which writing could change other files."""
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            if (link := Path(place, name)).is_symlink():
                raise InputError(
                    f"{str(link)!r} is a symbolic link: what it leads to could be overwritten",
                    "copy the index with what its links lead to (cp -rL), and write there",
                )


def _living(segment: Segment, ids: Collection[str]) -> Rows:
    """The rows of the living documents among these ids."""
    return np.setdiff1d(segment.documents.rows(ids), segment.deleted, assume_unique=True)


def _less(folder: Path, about: SegmentAbout, rows: Rows) -> SegmentAbout:
    """What vouches for a segment without these documents, once that is on the disk.

    Rows are only ever added to them, so their number tells one file of a segment from the next.
    """
    if len(rows) == about.dead:
        return about
    name = f"deleted-{len(rows)}.npy"
    if len(rows) < about.documents:  # else the segment goes
        write_array(folder / name, rows)
        settle(folder)
    files = {file: stored for file, stored in about.files.items() if file != about.deleted}
    if len(rows) < about.documents:
        files |= described(folder, [name])
        return about.model_copy(update={"deleted": name, "dead": len(rows), "files": files})
    return about.model_copy(update={"dead": len(rows)})


def _cut(
    segment: Segment, target: Manifest, cut: Callable[[Iterable[Document]], Iterator[Passage]]
) -> SegmentAbout:
    """What vouches for a segment with passages, once they are on the disk."""
    shutil.rmtree(segment.folder / PASSAGES, ignore_errors=True)
    builder = PassageBuilder(segment.folder / PASSAGES, {})
    for first in range(0, len(segment), _AT_ONCE):
        rows = np.arange(first, min(first + _AT_ONCE, len(segment)))
        builder.add(first, list(cut(segment.documents.documents(rows))))
    found = len(builder.finish(segment.documents))
    about = segment.about.model_copy(update={"passages": found})
    files = {**about.files, **part_files(segment.folder, PASSAGES, target, about)}
    return about.model_copy(update={"files": files})


def _recorded(
    record: Path, folder: Path, fields: Mapping[str, FieldAbout], job: str
) -> dict[str, dict[str, int]]:
    """What earlier work of this job recorded of new fields; nothing unless files hold all of it."""
    try:
        progress = read_mapping(record)
        found: dict[str, dict[str, int]] = progress["fields"]
        whole = all(is_whole(folder / name, one, found[name]) for name, one in fields.items())
        rows = {found[name]["rows"] for name in fields}
    except (UnreadableError, OSError, KeyError, TypeError, AttributeError):
        return {}
    return found if progress.get("job") == job and whole and len(rows) == 1 else {}


def _after(done: int, blocks: Iterator[list[Document]]) -> Iterator[list[Document]]:
    """The blocks of rows without the first ones."""
    for block in blocks:
        if done >= len(block):
            done -= len(block)
        else:
            yield block[done:]
            done = 0


def _numbers(folder: Path) -> list[str]:
    """The names of all segments in a folder, whether they count or not."""
    place = folder / SEGMENTS
    entries = place.iterdir() if place.is_dir() else ()
    return sorted(one.name for one in entries if _NUMBER.fullmatch(one.name))


def _files(folder: Path) -> Iterator[Path]:
    for place, _, names in os.walk(folder):
        yield from (Path(place, name) for name in names)


def _remove(place: Path) -> None:
    with suppress(OSError):  # some systems keep files that are in use: the next writer's
        shutil.rmtree(place) if place.is_dir() else place.unlink()
