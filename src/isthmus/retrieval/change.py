"""Changing an index: adding and deleting documents, and bringing it up to date with its source."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
import xxhash
from pydantic import Field

from isthmus.collections import Corpus, Problems, open_corpus
from isthmus.collections.in_memory import called
from isthmus.collections.problems import ReadingSettings
from isthmus.config import Overrides
from isthmus.config.settings import check_arguments
from isthmus.errors import InputError, MismatchError
from isthmus.indexes.documents import blocks
from isthmus.indexes.index import Index
from isthmus.indexes.manifest import CorpusOrigin, Manifest, index_folder
from isthmus.indexes.writer import IndexWriter, Update
from isthmus.progress import Bar, notice, said_once
from isthmus.records import Document
from isthmus.retrieval.index import Filling, add_all, said_of_encoders
from isthmus.retrieval.passage_cutter import cutter_of, rows
from isthmus.retrieval.searcher import check_encoder, encoder_key, encoder_name
from isthmus.text.passages import Cutter

if TYPE_CHECKING:
    pass

_BLOCK = 1024
_NAMED = 5  # ids in a message


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


class SyncSettings(AddSettings):
    """How documents are read and added."""

    verb = "sync"


@dataclass(frozen=True, slots=True)
class Sync:
    """The ids of documents that are new, changed and no longer there, and how many are the same.

    `undecided` are documents of the index that may or may not be there: what they are read from
    could not be read. They stay as they are.
    """

    added: tuple[str, ...]
    changed: tuple[str, ...]
    deleted: tuple[str, ...]
    unchanged: int
    dry_run: bool = False
    undecided: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.added or self.changed or self.deleted)

    def __str__(self) -> str:
        if not self and not self.undecided:
            return f"up to date: {self.unchanged:,} documents are as they were"
        verbs = ("add", "replace", "delete") if self.dry_run else ("added", "replaced", "deleted")
        every = zip(verbs, (self.added, self.changed, self.deleted), strict=True)
        lines = [f"{'would ' * self.dry_run}{verb} {_named(ids)}" for verb, ids in every if ids]
        lines.append(f"left {self.unchanged:,} as they were")
        if self.undecided:
            lines.append(f"could not read, and left in the index, {_named(self.undecided)}")
        return "\n".join(lines)


def add(index: str | Path, documents: str, *, settings: AddSettings | Overrides = None) -> Update:
    """Adds documents and says what changed; those whose ids were there are replaced.

    All of it counts at once, at the end. Interrupted and run again, it resumes where it stopped.
    """
    settings = AddSettings.given(settings)
    check_arguments("add", {"index": index, "documents": documents})
    problems = settings.account()
    source = open_corpus(documents, problems)
    update = _put(index_folder(index), source, documents, settings)
    if problems.counts:
        notice(problems.summary())
    return update


def delete(
    index: str | Path, ids: Iterable[str], *, settings: DeleteSettings | Overrides = None
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
    with IndexWriter(folder) as writer:
        if missing := writer.missing(unwanted):
            unknown = f"{len(missing):,} of {len(unwanted):,} ids are not in the index: "
            unknown += ", ".join(map(repr, missing[:_NAMED])) + ", …" * (len(missing) > _NAMED)
            if settings.problems == "refuse":
                raise InputError(
                    f"{folder}: {unknown}",
                    "correct the ids (nothing was deleted), or skip unknown ones: --set "
                    "problems=skip",
                )
            notice(unknown)
        writer.delete(unwanted)
        update = writer.commit()
        writer.merge()
    return update


@said_once()
def sync(
    index: str | Path,
    documents: str,
    *,
    dry_run: bool = False,
    compact: bool = False,
    settings: SyncSettings | Overrides = None,
) -> Sync:
    """Makes an index that of the documents as they are now; what changed, or would with `dry_run`.

    Only new and changed documents are encoded, and those that are no longer there are deleted, all
    in one commit; to `compact` then makes the index one segment. Interrupted and run again, it
    resumes where it stopped. Documents are read as they were for the index, where settings say
    nothing else.

    Where a file or line cannot be read, what may have been in it stays in the index, and is named.
    """
    settings = SyncSettings.given(settings)
    check_arguments("sync", {"index": index, "documents": documents})
    folder = index_folder(index)
    stored = Index.open(folder, fields=())
    settings = _read_alike(settings, stored.manifest)
    source = open_corpus(documents, problems := settings.account())
    found = _compare(documents, source, stored, problems, dry_run)
    if dry_run:
        return found
    origin = None
    if not found.undecided and not problems.counts:  # then the index is of these documents
        origin = CorpusOrigin(
            spec=documents, fingerprint=source.fingerprint(), reading=settings.reading
        )
    if found:
        wanted = {*found.added, *found.changed}
        _put(folder, source, documents, settings, wanted, found.deleted, origin)
    elif origin is not None and origin != stored.manifest.corpus:
        with IndexWriter(folder) as writer:
            writer.commit(corpus=origin)
    if compact:
        with IndexWriter(folder) as writer:
            writer.merge(everything=True)
    return found


def open_writer(index: str | Path, model: str | None = None) -> Writer:
    """The writer of an index, to be closed or used in a `with` block; a second one is refused."""
    return Writer(IndexWriter(index_folder(index)), model)


class Writer:
    """The one writer of an index, together with the encoders of its fields.

    Nothing counts before `commit`; leaving the `with` block without it changes nothing.
    """

    def __init__(self, index: IndexWriter, model: str | None = None) -> None:
        self.index = index
        self._model = model

    @cached_property
    def fillings(self) -> list[Filling]:
        """The encoders and their fields, loaded when the first document is added."""
        return load_fillings(self.index, self._model)

    @cached_property
    def cutter(self) -> Cutter | None:
        """What cuts documents into the passages of the index; None where there are none."""
        encoders = [one.encoder for one in self.fillings]
        return cutter_of(self.index.manifest, self.index.folder, encoders, self._model)

    def add(self, documents: Iterable[Document]) -> None:
        """Adds documents; those whose ids are there already are replaced."""
        for block in blocks(documents, _BLOCK):
            last = list({document.id: document for document in block}.values())
            read = list(rows(self.cutter, last))
            vectors: dict[str, Any] = {}
            for one in self.fillings:
                vectors |= dict.fromkeys(one.fields, one.encoder.encode_documents(read))
            self.index.add(last, read, vectors)

    def delete(self, ids: Iterable[str]) -> None:
        """Takes documents away; unknown ids are ignored."""
        self.index.delete(ids)

    def commit(self) -> Update:
        """Makes all that was done since the last commit count, at once and for good."""
        return self.index.commit()

    def merge(self, everything: bool = False) -> None:
        """Makes fewer segments of many; with `everything`, one."""
        self.index.merge(everything)

    @property
    def is_held(self) -> bool:
        """Whether the index is still the one that it was opened for."""
        return self.index.is_held

    def close(self) -> None:
        """Lets others write; what was not committed is given up."""
        self.index.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def load_fillings(writer: IndexWriter, model: str | None) -> list[Filling]:
    """The encoders of an index's fields, each loaded once, with the fields that they fill."""
    loaded: dict[str, Any] = {}
    fields: dict[str, list[str]] = {}
    for name, origin in writer.manifest.encoders.items():
        key = encoder_key(origin)
        if key not in loaded:
            from isthmus.encoders import load_indexed_encoder  # torch, which deleting does without

            found = encoder_name(writer.folder, origin, model)
            loaded[key] = load_indexed_encoder(found, origin.settings, origin.backend)
            check_encoder(origin, loaded[key], where="model")
        fields.setdefault(key, []).append(name)
    return [
        Filling.of(encoder, fields[key], writer.manifest.fields) for key, encoder in loaded.items()
    ]


def _put(
    folder: Path,
    source: Corpus,
    spec: str,
    settings: AddSettings,
    wanted: Collection[str] | None = None,
    gone: Sequence[str] = (),
    origin: CorpusOrigin | None = None,
) -> Update:
    """What adding a corpus, or the `wanted` documents of it, and deleting others changed."""
    job = _job(source.fingerprint(), settings, wanted)
    with IndexWriter(folder, job=job) as writer:
        if wanted is None or wanted:
            _add(writer, source, spec, settings, wanted)
        writer.delete(gone)
        update = writer.commit(corpus=origin)
        writer.merge()
    return update


def _add(
    writer: IndexWriter,
    source: Corpus,
    spec: str,
    settings: AddSettings,
    wanted: Collection[str] | None,
) -> None:
    fillings = load_fillings(writer, settings.model)
    encoders = [one.encoder for one in fillings]
    cutter = cutter_of(writer.manifest, writer.folder, encoders, settings.model)
    documents, total = source.documents(), source.count()
    if wanted is not None:
        documents, total = (one for one in documents if one.id in wanted), len(wanted)
    if done := writer.done:
        notice(f"resuming after {done:,} documents")
    with Bar(f"adding {called(spec)}", total, "documents", done) as bar:
        remaining = islice(documents, done, None)
        add_all(remaining, cutter, fillings, writer, settings.block_size, bar)
    said_of_encoders(fillings, done, writer.folder)


def _job(fingerprint: str, settings: AddSettings, wanted: Collection[str] | None) -> str:
    """A name for adding these documents: the work of another job is not resumed."""
    some = None if wanted is None else sorted(wanted)
    return xxhash.xxh3_128_hexdigest(f"{fingerprint} {settings.kept} {some}".encode())


def _compare(spec: str, source: Corpus, stored: Index, problems: Problems, dry_run: bool) -> Sync:
    added: list[str] = []
    changed: list[str] = []
    unchanged = 0
    unseen = [segment.lives.copy() for segment in stored.segments]
    with Bar(f"comparing {called(spec)}", source.count(), "documents") as bar:
        for block in blocks(source.documents(), _BLOCK):
            known: dict[str, Document] = {}
            for segment, left in zip(stored.segments, unseen, strict=True):
                here = segment.documents.locate([document.id for document in block])
                here = here[here >= 0]
                here = here[segment.lives[here]]
                left[here] = False
                known |= {one.id: one for one in segment.documents.documents(here)}
            for document in block:
                if document.id not in known:
                    added.append(document.id)
                elif known[document.id] != document:
                    changed.append(document.id)
                else:
                    unchanged += 1
            bar.advance(len(block))
    missing = [
        one
        for segment, left in zip(stored.segments, unseen, strict=True)
        for one in segment.documents.ids(np.flatnonzero(left))
    ]
    unread = problems.unread
    # A line that cannot be read may have been any document; a file is the one of its name.
    undecided = tuple(one for one in missing if problems.without_id or one in unread)
    deleted = () if problems.without_id else tuple(one for one in missing if one not in unread)
    if problems.counts:
        notice(problems.summary())
    if undecided:
        notice(
            f"whether {len(undecided):,} documents of the index are still there is not known: mend "
            "what was skipped and run the same command again, or take them out with isthmus delete"
        )
    if deleted and not unchanged and not changed:
        raise MismatchError(
            f"not one of the {len(deleted):,} documents of the index ({deleted[0]!r}, …) is in "
            f"{spec!r}",
            "check the path; to replace them all: isthmus index --overwrite",
        )
    return Sync(tuple(added), tuple(changed), deleted, unchanged, dry_run, undecided)


def _read_alike(settings: SyncSettings, manifest: Manifest) -> SyncSettings:
    """The settings, with what they leave open of reading as the index was read."""
    kept = manifest.corpus.reading
    names = type(kept).model_fields.keys() - settings.model_fields_set
    return settings.model_copy(update={name: getattr(kept, name) for name in names})


def _named(ids: tuple[str, ...]) -> str:
    more = ", …" if len(ids) > _NAMED else ""
    return f"{len(ids):,}: {', '.join(ids[:_NAMED])}{more}"
