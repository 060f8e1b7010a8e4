"""The verb `isthmus sync`: an index brought up to date with the documents it was made of."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field

from isthmus.collections import open_corpus
from isthmus.collections.in_memory import called
from isthmus.config import Overrides
from isthmus.config.settings import check_arguments
from isthmus.errors import InputError, IsthmusError, MismatchError
from isthmus.indexes.documents import blocks
from isthmus.indexes.segments.stored import StoredDocuments, owner
from isthmus.indexes.segments.writer import IndexWriter
from isthmus.progress import Bar, notice, said_once
from isthmus.records import Document
from isthmus.retrieval.hnsw import ChosenHnsw
from isthmus.retrieval.hybrid_folder import index_folder, is_hybrid, read_hybrid
from isthmus.retrieval.living_hybrid import tidy
from isthmus.retrieval.passage_cutter import cutter_of, rows
from isthmus.retrieval.verbs.update import AddSettings, merge, put

_BLOCK = 1024
_NAMED = 5


class SyncSettings(AddSettings):
    """How documents are read and added, and what is built when the index becomes one segment."""

    verb = "sync"

    hnsw: ChosenHnsw = Field(
        False, description="with --compact: a graph for approximate search of dense vectors"
    )


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


def _named(ids: tuple[str, ...]) -> str:
    more = ", …" if len(ids) > _NAMED else ""
    return f"{len(ids):,}: {', '.join(ids[:_NAMED])}{more}"


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

    A document is unchanged if what would become of it is what the index keeps, text or passages.
    Only new and changed ones are encoded, and those that are no longer there are deleted, all in
    one commit; to `compact` then makes the index one segment. Interrupted and run again, it resumes
    where it stopped. Documents are read as they were for the index, where settings say nothing
    else.

    Where a file or line cannot be read, what may have been in it stays in the index, and is named.
    """
    settings = SyncSettings.given(settings)
    check_arguments("sync", {"index": index, "documents": documents})
    folder = index_folder(index)
    stored = _stored(folder)
    settings = _read_alike(settings, stored)
    found = _compare(documents, stored, settings, dry_run)
    if found and not dry_run:
        wanted = {*found.added, *found.changed}
        put(folder, documents, settings, wanted, dict.fromkeys(found.deleted))
    elif not dry_run:
        with suppress(IsthmusError):  # another writer is there, or none may write: no matter
            tidy(folder) if is_hybrid(folder) else IndexWriter(folder).close()
    if compact and not dry_run:
        merge(folder, model=settings.model, hnsw=settings.hnsw)
    return found


def _compare(corpus: str, stored: StoredDocuments, settings: SyncSettings, dry_run: bool) -> Sync:
    cutter = cutter_of(stored.manifest, stored.folder, None, settings.model)
    source = open_corpus(corpus, problems := settings.account())
    added: list[str] = []
    changed: list[str] = []
    unchanged = 0
    with Bar(f"comparing {called(corpus)}", source.count(), "documents") as bar:
        for block in blocks(source.documents(), _BLOCK):
            known = stored.find([document.id for document in block])
            expected: dict[str, list[Document]] = {}
            for row in rows(cutter, (one for one in block if one.id in known)):
                expected.setdefault(owner(row), []).append(row)
            for document in block:
                if document.id not in known:
                    added.append(document.id)
                elif known[document.id] != expected[document.id]:
                    changed.append(document.id)
                else:
                    unchanged += 1
            bar.advance(len(block))
    missing, unread = stored.unseen(), problems.unread
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
            f"{corpus!r}",
            "check the path; to replace them all: isthmus index --overwrite",
        )
    return Sync(tuple(added), tuple(changed), deleted, unchanged, dry_run, undecided)


def _read_alike(settings: SyncSettings, stored: StoredDocuments) -> SyncSettings:
    """The settings, with what they leave open of reading as the index was read."""
    kept = stored.manifest.corpus.reading
    names = type(kept).model_fields.keys() - settings.model_fields_set
    return settings.model_copy(update={name: getattr(kept, name) for name in names})


def _stored(folder: Path) -> StoredDocuments:
    """The documents of an index, or of the one among several that is the easiest to compare."""
    places = read_hybrid(folder).folders(folder) if is_hybrid(folder) else [folder]
    every = [one for one in map(StoredDocuments, places) if one.manifest.texts]
    if not every:
        raise InputError(
            f"the index {str(folder)!r} keeps no texts: what has changed since cannot be seen",
            "use `isthmus add` and `isthmus delete`, or build it again: isthmus index --overwrite",
        )
    # BM25 cuts passages without a tokenizer that would have to be loaded.
    return min(every, key=lambda one: one.manifest.encoder is not None)
