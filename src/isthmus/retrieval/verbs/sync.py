"""The verb `isthmus sync`: an index brought up to date with the documents it was made of."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from isthmus.collections import open_corpus
from isthmus.config import Overrides
from isthmus.config.calls import check_arguments
from isthmus.errors import InputError, IsthmusError, MismatchError
from isthmus.indexes.documents import blocks
from isthmus.indexes.segments.stored import StoredDocuments, owner
from isthmus.indexes.segments.writer import IndexWriter
from isthmus.progress import Bar, notice, said_once
from isthmus.records import Document
from isthmus.retrieval.hybrid_folder import is_living, read_hybrid
from isthmus.retrieval.living_hybrid import tidy
from isthmus.retrieval.passage_cutter import cutter_of, rows
from isthmus.retrieval.verbs.update import AddSettings, put

_BLOCK = 1024
_NAMED = 5


class SyncSettings(AddSettings):
    """How documents are read and added."""

    verb = "sync"


@dataclass(frozen=True, slots=True)
class Sync:
    """The ids of documents that are new, changed and no longer there, and how many are the same."""

    added: tuple[str, ...]
    changed: tuple[str, ...]
    deleted: tuple[str, ...]
    unchanged: int
    dry_run: bool = False

    def __bool__(self) -> bool:
        return bool(self.added or self.changed or self.deleted)

    def __str__(self) -> str:
        if not self:
            return f"up to date: {self.unchanged:,} documents are as they were"
        verbs = ("add", "replace", "delete") if self.dry_run else ("added", "replaced", "deleted")
        every = zip(verbs, (self.added, self.changed, self.deleted), strict=True)
        lines = [f"{'would ' * self.dry_run}{verb} {_named(ids)}" for verb, ids in every if ids]
        return "\n".join([*lines, f"left {self.unchanged:,} as they were"])


def _named(ids: tuple[str, ...]) -> str:
    more = ", …" if len(ids) > _NAMED else ""
    return f"{len(ids):,}: {', '.join(ids[:_NAMED])}{more}"


@said_once()
def sync(
    corpus: str,
    index: str | Path,
    *,
    dry_run: bool = False,
    model: str | None = None,
    settings: SyncSettings | Overrides = None,
) -> Sync:
    """Makes an index that of a corpus as it is now; what changed, or would with `dry_run`.

    A document is unchanged if what would become of it is what the index keeps, text or passages.
    Only new and changed ones are encoded, and those that are no longer there are deleted, all in
    one commit. Interrupted and run again, it goes on where it stopped.
    """
    settings = SyncSettings.given(settings, {"model": model})
    check_arguments("sync", {"corpus": corpus, "index": index})
    folder = Path(index)
    found = _compare(corpus, folder, settings, dry_run)
    if found and not dry_run:
        wanted = {*found.added, *found.changed}
        put(folder, corpus, settings, wanted, dict.fromkeys(found.deleted))
    elif not dry_run:
        with suppress(IsthmusError):  # another writer is there, or none may write: no matter
            tidy(folder) if is_living(folder) else IndexWriter(folder).close()
    return found


def _compare(corpus: str, folder: Path, settings: SyncSettings, dry_run: bool) -> Sync:
    stored = _stored(folder)
    cutter = cutter_of(stored.manifest, stored.folder, None, settings.model)
    source = open_corpus(corpus, problems := settings.account())
    added: list[str] = []
    changed: list[str] = []
    unchanged = 0
    with Bar(f"comparing {corpus}", source.count(), "documents") as bar:
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
    deleted = tuple(stored.unseen())
    if problems.counts:
        notice(problems.summary())
        if deleted:
            kept = f"{len(deleted):,} documents of the index were not read, and stay as they are"
            notice(f"{kept}: what was skipped may be among them")
            deleted = ()
    if deleted and not unchanged and not changed:
        raise MismatchError(
            f"not one of the {len(deleted):,} documents of the index is in {corpus!r}",
            where=corpus,
            allowed=f"documents with the ids of the index, such as {deleted[0]!r}",
            remedy="check the path; to replace them all: isthmus index --overwrite",
        )
    return Sync(tuple(added), tuple(changed), deleted, unchanged, dry_run)


def _stored(folder: Path) -> StoredDocuments:
    """The documents of an index, or of the one among several that is the easiest to compare."""
    places = read_hybrid(folder).folders(folder) if is_living(folder) else [folder]
    every = [one for one in map(StoredDocuments, places) if one.manifest.texts]
    if not every:
        raise InputError(
            "the index keeps no texts: what has changed since cannot be seen",
            where=str(folder),
            allowed="an index with texts (texts=true, the default of `isthmus index`)",
            remedy="use `isthmus add` and `isthmus delete`, or build it again: isthmus index "
            "--overwrite",
        )
    # BM25 cuts passages without a tokenizer that would have to be loaded.
    return min(every, key=lambda one: one.manifest.encoder is not None)
