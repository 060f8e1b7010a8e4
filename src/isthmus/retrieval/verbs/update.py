"""Adding to an index, deleting from it, and merging its segments."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import astuple
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self
from uuid import uuid4

import xxhash
from pydantic import Field

from isthmus.collections import open_corpus
from isthmus.collections.in_memory import called
from isthmus.collections.problems import ReadingSettings
from isthmus.config import Overrides
from isthmus.config.output import only_writer
from isthmus.config.settings import check_arguments
from isthmus.errors import InputError
from isthmus.indexes.documents import blocks
from isthmus.indexes.manifest import stated_manifest
from isthmus.indexes.segments.writer import IndexWriter, Update
from isthmus.progress import Bar, notice, said_once
from isthmus.records import Document
from isthmus.retrieval.hnsw import ChosenHnsw, add_hnsw, check_hnsw
from isthmus.retrieval.hybrid_folder import index_folder, is_hybrid
from isthmus.retrieval.living_hybrid import Change, changing
from isthmus.retrieval.passage_cutter import begun, cutter_of, rows
from isthmus.retrieval.searcher import check_encoder, encoder_name

if TYPE_CHECKING:
    from isthmus.encoders import DenseEncoder, SparseEncoder

_BLOCK = 1024
_NAMED = 5  # of the ids that are not in the index


class AddSettings(ReadingSettings):
    """How documents are added."""

    verb = "add"

    model: str | None = Field(
        None, description="the encoder, if it moved or is not on this disk yet"
    )
    block_size: int = Field(_BLOCK, ge=1, description="documents between two recorded steps")


class DeleteSettings(ReadingSettings):
    """How ids that no document has are treated."""

    verb = "delete"

    problems: Literal["refuse", "skip"] = Field(
        "refuse", description="what to do when some ids are not in the index"
    )


def add(
    index: str | Path,
    documents: str,
    *,
    settings: AddSettings | Overrides = None,
) -> Update:
    """Adds documents and says what changed; those whose ids were there are replaced.

    All of it counts at once, at the end. Interrupted and run again, it resumes where it stopped.
    """
    settings = AddSettings.given(settings)
    check_arguments("add", {"index": index, "documents": documents})
    return put(index_folder(index), documents, settings)


def put(
    folder: Path,
    corpus: str,
    settings: AddSettings,
    wanted: Collection[str] | None = None,
    gone: Collection[str] = (),
) -> Update:
    """What adding a corpus, or the `wanted` documents of it, and deleting others changed.

    One commit, also of several indexes in one folder.
    """
    if not is_hybrid(folder):
        return _put(folder, corpus, settings, wanted, gone)
    source = open_corpus(corpus, settings.account())
    job = f"{_job(source.fingerprint(), wanted)} {settings.kept} {sorted(gone)}"
    with changing(folder, job) as change, said_once():
        first, *_ = change.each(lambda at: astuple(_put(at, corpus, settings, wanted, gone)))
    return Update(*first)


def _put(
    folder: Path,
    corpus: str,
    settings: AddSettings,
    wanted: Collection[str] | None,
    gone: Collection[str],
) -> Update:
    problems = settings.account()
    source = open_corpus(corpus, problems)
    with IndexWriter(folder, job=_job(source.fingerprint(), wanted)) as writer:
        if wanted is not None and not wanted:  # no encoder is needed
            writer.delete(gone)
            return writer.commit()
        encoder = _encoder(writer, settings.model)
        cutter = cutter_of(writer.manifest, folder, encoder)
        read, total = source.documents(), source.count()
        if wanted is not None:
            read, total = (one for one in read if one.id in wanted), len(wanted)
        documents = iter(rows(cutter, read))
        done = writer.resume(documents)
        if done:
            notice(f"resuming after {done:,} documents")
        if encoder is not None:
            encoder.cut_texts.restart()
        with Bar(f"adding {called(corpus)}", total, "documents", done) as bar:
            for block in blocks(documents, settings.block_size):
                writer.add(block, _vectors(encoder, block))
                bar.advance(begun(block))
        if encoder is not None:
            notice(encoder.cut_texts.summary())
        writer.delete(gone)
        update = writer.commit()
    if problems.counts:
        notice(problems.summary())
    return update


def _job(fingerprint: str, wanted: Collection[str] | None) -> str:
    """A name for adding these documents: what another job has done is not gone on with."""
    if wanted is None:
        return fingerprint
    return xxhash.xxh3_128_hexdigest(f"{fingerprint} {sorted(wanted)}".encode())


def delete(
    index: str | Path,
    ids: Iterable[str],
    *,
    settings: DeleteSettings | Overrides = None,
) -> Update:
    """What deleting the documents of these ids changed.

    Where one of them is not in the index, nothing is deleted, unless such ids are to be skipped.
    """
    settings = DeleteSettings.given(settings)
    # In the order in which they were given.
    unwanted = dict.fromkeys([ids] if isinstance(ids, str) else ids)
    if not unwanted:
        raise InputError(
            "there is no id of a document to delete",
            "give ids of documents, or - to read one per line from standard input",
        )
    folder = index_folder(index)
    if not is_hybrid(folder):
        return _delete(folder, unwanted, settings)
    with changing(folder, f"delete {sorted(unwanted)}") as change:
        first, *_ = change.each(lambda place: astuple(_delete(place, unwanted, settings)))
    return Update(*first)


def _delete(folder: Path, unwanted: Collection[str], settings: DeleteSettings) -> Update:
    with IndexWriter(folder) as writer:
        if missing := writer.missing(unwanted):
            named = ", ".join(map(repr, missing[:_NAMED])) + ", …" * (len(missing) > _NAMED)
            unknown = f"{len(missing):,} of {len(unwanted):,} ids are not in the index: {named}"
            if settings.problems == "refuse":
                raise InputError(
                    f"{folder}: {unknown}",
                    "correct the ids (nothing was deleted), or skip unknown ones: --set "
                    "problems=skip",
                )
            notice(unknown)
        writer.delete(unwanted)
        return writer.commit()


def merge(index: str | Path, *, model: str | None = None, hnsw: ChosenHnsw = False) -> Update:
    """The index in one segment, as if it had been built from the documents that are in it.

    A graph can be built next to it, which an index of several segments has no place for.
    """
    folder = index_folder(index)
    if not is_hybrid(folder):
        return _merge(folder, model, hnsw)

    def merged(place: Path) -> tuple[int, ...]:
        dense = stated_manifest(place).kind == "dense"
        return astuple(_merge(place, model, hnsw if dense else False))

    with changing(folder, f"merge {hnsw}") as change:
        first, *_ = change.each(merged)
    return Update(*first)


def _merge(folder: Path, model: str | None, hnsw: ChosenHnsw) -> Update:
    settings = check_hnsw(hnsw, stated_manifest(folder).kind)
    with IndexWriter(folder) as writer:
        update = writer.merge()
    if settings is not None:
        notice(add_hnsw(folder, model, settings).summary())
    return update


def open_writer(index: str | Path, model: str | None = None) -> Writer | HybridWriter:
    """The writer of an index, to be closed or used in a `with` block; a second one is refused."""
    folder = index_folder(index)
    if is_hybrid(folder):
        return HybridWriter(folder, model)
    return Writer(IndexWriter(folder), model)


class Writer:
    """The one writer of an index, together with the encoder that filled it.

    Nothing counts before `commit`; leaving the `with` block without it changes nothing.
    """

    def __init__(self, index: IndexWriter, model: str | None = None) -> None:
        self.index = index
        self._model = model

    @cached_property
    def encoder(self) -> DenseEncoder | SparseEncoder | None:
        """The encoder of the index, loaded when the first document is added; None for BM25."""
        return _encoder(self.index, self._model)

    def add(self, documents: Iterable[Document]) -> None:
        """Adds documents; those whose ids are there already are replaced."""
        cutter = cutter_of(self.index.manifest, self.index.folder, self.encoder)
        for block in blocks(rows(cutter, documents), _BLOCK):
            self.index.add(block, _vectors(self.encoder, block))

    def delete(self, ids: Iterable[str]) -> None:
        """Takes documents away; unknown ids are ignored."""
        self.index.delete(ids)

    def commit(self) -> Update:
        """Makes all that was done since the last commit count, at once and for good."""
        return self.index.commit()

    def merge(self) -> Update:
        """Commits, and makes the index whole: as if built anew from its living documents."""
        return self.index.merge()

    @property
    def is_held(self) -> bool:
        """Whether the index is still the one that it was opened for."""
        return self.index.is_held

    def close(self, wait: bool = True) -> None:
        """Lets others write; merging under way comes to its end first, or is given up."""
        self.index.close(wait)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(wait=kind is None)


class HybridWriter:
    """The one writer of several indexes that change together, each with its encoder.

    Nothing counts before `commit`; leaving the `with` block without it changes nothing.
    """

    def __init__(self, folder: Path, model: str | None = None) -> None:
        self._folder = folder
        self._lock = only_writer(folder)
        self._writers: list[Writer] = []
        try:
            self._begin(model)
        except BaseException:
            self._lock.release()
            raise

    def _begin(self, model: str | None = None) -> None:
        self._change = Change(self._folder, uuid4().hex)
        if not self._writers:
            self._writers = [Writer(IndexWriter(one), model) for one in self._change.folders]
            return
        for writer, place in zip(self._writers, self._change.folders, strict=True):
            writer.index = IndexWriter(place)  # the encoder stays loaded

    def add(self, documents: Iterable[Document]) -> None:
        """Adds documents; those whose ids are there already are replaced."""
        for block in blocks(documents, _BLOCK):
            for writer in self._writers:
                writer.add(block)

    def delete(self, ids: Iterable[str]) -> None:
        """Takes documents away; unknown ids are ignored."""
        unwanted = [ids] if isinstance(ids, str) else list(ids)
        for writer in self._writers:
            writer.delete(unwanted)

    def commit(self) -> Update:
        """Makes all that was done since the last commit count, at once and for good."""
        return self._publish([writer.commit() for writer in self._writers])

    def merge(self) -> Update:
        """Commits, and makes every index whole: as if built anew from its living documents."""
        return self._publish([writer.merge() for writer in self._writers])

    @property
    def is_held(self) -> bool:
        """Whether the folder is still the one that it was opened for."""
        return self._lock.is_held

    def _publish(self, updates: list[Update]) -> Update:
        for writer in self._writers:
            writer.close()
        self._change.commit()
        self._begin()
        return updates[0]

    def close(self, wait: bool = True) -> None:
        """Lets others write; what was not committed is given up."""
        for writer in self._writers:
            writer.close(wait)
        self._change.give_up()
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(wait=kind is None)


def _vectors(encoder: DenseEncoder | SparseEncoder | None, documents: list[Document]) -> Any:
    return None if encoder is None else encoder.encode_documents(documents)


def _encoder(index: IndexWriter, model: str | None) -> DenseEncoder | SparseEncoder | None:
    origin = index.manifest.encoder
    if origin is None:
        return None
    from isthmus.encoders import load_indexed_encoder  # brings torch, which deleting does without

    name = encoder_name(index.folder, origin, model)
    encoder = load_indexed_encoder(name, origin.settings, origin.backend)
    check_encoder(index.manifest, encoder, where="model")
    return encoder
