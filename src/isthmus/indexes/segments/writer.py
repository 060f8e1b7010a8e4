"""Adding to an index, deleting from it, and keeping its segments few.

One writer at a time, any number of readers. Nothing counts before `commit` returns; what it
returned for is there whatever happens to the process afterwards.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from threading import Event, RLock, Thread
from typing import Any, Self

import numpy as np

from isthmus.config.output import only_writer, writing
from isthmus.errors import InputError, IsthmusError, MismatchError
from isthmus.indexes.dense.hnsw import building_command
from isthmus.indexes.documents import DocumentStore
from isthmus.indexes.integrity import described
from isthmus.indexes.manifest import SEGMENTS, CorpusOrigin, Manifest, Segment, stated_manifest
from isthmus.indexes.segments.commit import (
    become_segment,
    become_whole,
    clean,
    commit,
    refuse_links,
    say_updated,
    settle,
    write_deleted,
)
from isthmus.indexes.segments.held import Held, lost_hnsw
from isthmus.indexes.segments.living import NO_ROWS, Rows, read_deleted
from isthmus.indexes.segments.merge_policy import describe, merge, to_merge
from isthmus.indexes.segments.pending import Pending
from isthmus.indexes.verification import read_manifest
from isthmus.progress import notice
from isthmus.records import Document, document_of


@dataclass(frozen=True, slots=True)
class Update:
    """What a commit changed: documents new, replaced and deleted, and how many there are now."""

    added: int
    replaced: int
    deleted: int
    documents: int


class IndexWriter:
    """The one writer of an index folder; a thread of it merges segments while it goes on."""

    def __init__(self, folder: Path, job: str | None = None) -> None:
        """Where a job is named, what an interrupted writer of the same job added can be resumed."""
        read_manifest(folder)
        refuse_links(folder)
        self._lock = only_writer(folder)
        self._closed = False
        self._folder = folder
        self._state = RLock()  # over all that follows: merging may end at any moment
        self._numbers = 0
        self._in_use: set[str] = set()  # segments in the making or being merged
        self._merger: Thread | None = None
        self._stop = Event()
        self._failure: BaseException | None = None
        self._job = job
        self._resumable: set[str] = set()  # the first segment of the job
        try:
            self._read()
        except BaseException:
            self._lock.release()
            raise

    @property
    def folder(self) -> Path:
        """Where the index lies."""
        return self._folder

    @property
    def is_held(self) -> bool:
        """Whether the folder is still the one that it was opened for."""
        return self._lock.is_held

    @property
    def manifest(self) -> Manifest:
        """The manifest of the last commit."""
        return self._manifest

    def add(self, documents: Sequence[Document], vectors: Any = None) -> None:
        """Takes documents with their vectors, a row each; those whose ids are there replace them.

        A BM25 index takes documents alone.

        When this fails for any reason but the documents themselves (a full disk), all that was
        not committed is given up.
        """
        try:
            self._pending.add(documents, vectors)
        except (InputError, MismatchError):
            raise
        except BaseException:
            self._give_up()
            raise

    def resume(self, documents: Iterator[Document]) -> int:
        """How many of the documents of this job are added already; they are taken from these."""
        assert self._job is not None
        with writing(self._folder):
            return self._pending.resume(documents)

    def delete(self, ids: Iterable[str]) -> None:
        """Takes documents away; unknown ids are ignored."""
        self._pending.delete(ids)

    def missing(self, ids: Collection[str]) -> list[str]:
        """The ids among these that no document would have after a commit."""
        with self._state:
            found = chain.from_iterable(held.store.ids(held.rows(ids)) for held in self._held)
            committed = map(document_of, found) if self._manifest.passages else found
            living = {*committed} - self._pending.removed
        living |= self._pending.added
        return [one for one in ids if one not in living]

    def commit(self) -> Update:
        """Makes all that was done since the last commit count, at once and for good.

        When this fails, the index is what it was, and what was not committed is given up.
        """
        self._raise_failure()
        with self._state:
            try:
                with writing(self._folder):
                    update = self._commit()
            except BaseException:
                self._give_up()
                raise
            if self._merger is None and self._choose() is not None:
                self._merger = Thread(target=self._keep_merging, name="merging", daemon=True)
                self._merger.start()
            return update

    def merge(self) -> Update:
        """Commits, and makes the index whole: as if built anew from its living documents."""
        update = self.commit()
        self._finish_merging()
        with self._state, writing(self._folder):
            if self._manifest.segments:
                if len(self._held) > 1 or len(self._held[0].deleted):
                    self._merge(self._held)
                (held,) = self._held
                stored = read_manifest(held.folder)
                whole = stored.model_copy(update={"corpus": self._manifest.corpus})
                try:
                    become_whole(self._folder, held.folder.name, whole)
                finally:
                    self._read()
        return update

    def close(self, wait: bool = True) -> None:
        """Lets others write; merging under way comes to its end first, or is given up."""
        if self._closed:
            return
        self._closed = True
        try:
            if not wait:
                self._stop.set()
            self._finish_merging()
        finally:
            self._drop_pending()
            self._clean()
            self._lock.release()

    def _read(self) -> None:
        """Starts from what is on the disk."""
        self._manifest = read_manifest(self._folder)
        if self._manifest.segments is None:
            self._held = [Held(self._folder, DocumentStore(self._folder), NO_ROWS)]
        else:
            self._held = [
                self._hold(one.name, read_deleted(self._folder, one), one.deleted)
                for one in self._manifest.segments
            ]
            names = [int(one.name) for one in self._manifest.segments]
            self._numbers = max([self._numbers, *names])
        if self._job is not None and not self._resumable:
            self._resumable = {_name(self._numbers + 1)}
        self._begin()
        self._clean()

    def _begin(self) -> None:
        corpus = self._manifest.corpus
        description = describe(self._manifest)
        if self._job is not None:
            origin = CorpusOrigin(spec=corpus.spec, fingerprint=self._job)
            description = description.model_copy(update={"corpus": origin})
        self._pending = Pending(description, corpus.fingerprint, self._new_folder)

    def _give_up(self) -> None:
        """Forgets what was not committed."""
        with self._state:
            self._drop_pending()
            self._read()

    def _drop_pending(self) -> None:
        self._pending.close()
        self._in_use -= {folder.name for folder in self._pending.folders}

    def _clean(self) -> None:
        if self._is_stored(self._manifest):
            clean(self._folder, self._manifest, self._in_use | self._resumable)

    def _is_stored(self, manifest: Manifest) -> bool:
        try:
            return stated_manifest(self._folder) == manifest
        except IsthmusError:  # the disk fails: what counts is not known
            return False

    def _hold(self, name: str, deleted: Rows, file: str | None = None) -> Held:
        folder = self._folder / SEGMENTS / name
        read_manifest(folder)  # what is damaged must not be merged into what is not
        return Held(folder, DocumentStore(folder), deleted, file)

    def _new_folder(self) -> Path:
        with self._state:
            self._numbers += 1
            name = _name(self._numbers)
            self._in_use.add(name)
        (self._folder / SEGMENTS).mkdir(exist_ok=True)
        folder = self._folder / SEGMENTS / name
        shutil.rmtree(folder, ignore_errors=True)  # of a process killed before a manifest named it
        return folder

    def _commit(self) -> Update:
        new = self._pending.finish()
        added = self._pending.added
        replaced = [held.rows(added) for held in self._held]
        deleted = [held.rows(self._pending.removed - added) for held in self._held]
        counts = [
            sum(one.documents(rows) for one, rows in zip(self._held, gone, strict=True))
            for gone in (replaced, deleted)
        ]
        self._drop_pending()
        if new or any(counts):
            held = self._held
            if self._manifest.segments is None:
                folder = self._new_folder()
                become_segment(self._folder, self._manifest, folder.name)
                settle(folder)
                held = [replace(held[0], folder=folder)]
                self._in_use.discard(folder.name)
            gone = map(np.union1d, replaced, deleted)
            held = [one.without(rows) for one, rows in zip(held, gone, strict=True)]
            for segment in new:
                settle(segment.folder)
                held.append(self._hold(segment.folder.name, segment.deleted))
            origin = CorpusOrigin(
                spec=self._manifest.corpus.spec, fingerprint=self._pending.fingerprint
            )
            self._publish(held, origin)
            say_updated(self._folder)
        self._job, self._resumable = None, set()
        self._begin()
        return Update(
            added=len(added) - counts[0],
            replaced=counts[0],
            deleted=counts[1],
            documents=sum(one.living_documents for one in self._held),
        )

    def _publish(self, held: Sequence[Held], corpus: CorpusOrigin) -> None:
        """Commits these segments, less those without living documents."""
        kept = []
        for one in held:
            if len(one.part):
                written = one.file
                if len(one.deleted) and written is None:
                    written = write_deleted(self._folder, one.folder.name, one.deleted)
                kept.append(replace(one, file=written))
        lost = lost_hnsw(self._held, kept)
        files = [one.file for one in kept if one.file is not None]
        manifest = Manifest(
            **{**dict(describe(self._manifest)), "corpus": corpus},
            documents=sum(len(one.part) for one in kept),
            segments=[
                Segment(name=one.folder.name, documents=len(one.store), deleted=one.file)
                for one in kept
            ],
            files=described(self._folder, files),
        )
        try:
            commit(self._folder, manifest)
        finally:  # the manifest may be replaced although a later step failed
            if self._is_stored(manifest):
                self._manifest, self._held = manifest, kept
        self._clean()
        if lost is not None:
            notice(
                "hnsw was made of documents that lie elsewhere now, and is gone; "
                f"{building_command(self._folder, lost)} builds it again"
            )

    def _choose(self) -> Sequence[Held] | None:
        if self._manifest.segments is None:
            return None
        living = [len(held.part) for held in self._held]
        chosen = to_merge(living, [len(held.store) for held in self._held])
        return None if chosen is None else self._held[chosen.start : chosen.stop]

    def _keep_merging(self) -> None:
        try:
            while True:
                with self._state:
                    chosen = None if self._stop.is_set() else self._choose()
                    if chosen is None:
                        self._merger = None
                        return
                    self._in_use |= {held.folder.name for held in chosen}
                self._merge(chosen)
        except BaseException as error:
            with self._state:
                self._merger = None
            if isinstance(error, IsthmusError):
                # Nothing is lost, and the next commit tries again.
                notice(f"segments could not be merged now: {error.what}")
            else:
                self._failure = error

    def _merge(self, chosen: Sequence[Held]) -> None:
        """Puts one segment in the place of several neighbours, while others come and go."""
        folder = self._new_folder()
        try:
            description = describe(self._manifest)
            with writing(folder):
                if not merge(folder, description, chosen, self._stop.is_set):
                    return
                settle(folder)
                with self._state:
                    self._replace(chosen, folder)
        finally:
            with self._state:
                self._in_use -= {folder.name, *(held.folder.name for held in chosen)}
                self._clean()

    def _replace(self, chosen: Sequence[Held], folder: Path) -> None:
        now = {held.folder: held for held in self._held}
        gone, first = [], 0
        for held in chosen:
            living = held.part.rows
            # What was deleted while the segments were merged; one that is gone has nothing left.
            lost = now[held.folder].deleted if held.folder in now else living
            gone.append(first + np.flatnonzero(np.isin(living, lost)))
            first += len(living)
        merged = self._hold(folder.name, np.concatenate(gone))
        folders = [held.folder for held in chosen]
        here = [place for place, held in enumerate(self._held) if held.folder in folders]
        if here:
            rest = [held for held in self._held[here[0] :] if held.folder not in folders]
            self._publish([*self._held[: here[0]], merged, *rest], self._manifest.corpus)

    def _finish_merging(self) -> None:
        with self._state:
            merger = self._merger
        if merger is not None:
            merger.join()
        self._raise_failure()

    def _raise_failure(self) -> None:
        if (failure := self._failure) is not None:
            self._failure = None
            raise failure

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(wait=kind is None)


def _name(number: int) -> str:
    return f"{number:06}"
