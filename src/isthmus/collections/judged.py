"""What `--queries` and `--qrels` take: a file, or a split of whatever is a collection."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from isthmus.collections.collection import Collection, Corpus, choose_split
from isthmus.collections.problems import Problems
from isthmus.collections.query_files import read_queries
from isthmus.collections.spec import open_collection, open_corpus
from isthmus.collections.trec import read_judgements
from isthmus.errors import InputError, SettingsError
from isthmus.progress import notice
from isthmus.records import Judgements, Query

_USUAL = "test"
# Development splits on which papers report their results. Of other data sets (FiQA, NFCorpus, …)
# they report on test, and dev is there to choose by.
_BY_ID = {
    "MS MARCO": re.compile(
        r"(msmarco-(passage|document)(-v2)?|msmarco-qna|beir/msmarco|mmarco(/v2)?/\w+|neumarco/\w+)"
        r"/dev\d?(/.*)?"
    ),
    "MIRACL": re.compile(r"miracl/\w+/dev"),
}
_PUBLISHED = re.compile(r"(beir|mteb)/msmarco(-qrels)?(:.*)?", re.IGNORECASE)
_DEVELOPMENT = ("dev", "validation")


def open_queries(
    source: str | Path, split: str | None = None, problems: Problems | None = None
) -> list[Query]:
    """The queries of a file, or those of a collection that are judged in a split.

    A collection without judgements gives all its queries.
    """
    spec = str(source)
    if is_file(spec):
        _refuse_split(split, spec)
        return read_queries(spec, problems)
    collection = open_corpus(spec, problems)
    if not isinstance(collection, Collection):
        raise InputError(
            f"{spec!r} has documents, but no queries",
            "name a file of queries (jsonl or tsv), or a collection with queries: a BEIR or MS "
            "MARCO folder, irds:ID, hf:ORG/NAME",
        )
    if not collection.splits() and split is None:
        return list(collection.queries())
    chosen = usual_split(collection, split, spec)
    judged = Judged.of(collection, chosen).queries
    queries = [query for query in collection.queries() if query.id in judged]
    notice(f"{len(queries):,} judged queries of the split {chosen!r} of {spec}")
    return queries


@dataclass(frozen=True)
class Judged:
    """What is known of the right documents: judgements of a split or a file, and answers."""

    judgements: Judgements
    answers: Mapping[str, Sequence[str]] = field(default_factory=dict)
    corpus: Corpus | None = None  # in whose texts answers are looked for

    @classmethod
    def of(cls, collection: Collection, split: str) -> Judged:
        """What a collection knows of one of its splits."""
        judged = {query: found for query, found in collection.judgements(split).items() if found}
        return cls(judged, collection.answers(split), collection)

    @property
    def queries(self) -> Mapping[str, object]:
        """Those that count: the judged ones or, where none is, those with answers."""
        return self.judgements or self.answers


def open_judged(
    source: str | Path, split: str | None = None, problems: Problems | None = None
) -> Judged:
    """The judgements of a file, or judgements and answers of a split of a collection."""
    spec = str(source)
    if is_file(spec):
        _refuse_split(split, spec)
        found = read_judgements(spec, problems)
        return Judged({query: documents for query, documents in found.items() if documents})
    collection = open_collection(spec, problems)
    chosen = usual_split(collection, split, spec)
    notice(f"judgements of the split {chosen!r} of {spec}")
    return Judged.of(collection, chosen)


def usual_split(collection: Collection, named: str | None, where: str) -> str:
    """The split of this name; without a name `test`, or the only one that there is."""
    splits = collection.splits()
    if named is None and len(splits) == 1:
        return splits[0]
    return choose_split({split: split for split in splits}, named or _USUAL, where)


def is_file(spec: str) -> bool:
    """Whether a source is a file, or leads nowhere and names no scheme."""
    path = Path(spec)
    return path.is_file() or not (path.is_dir() or ":" in spec)


def _refuse_split(split: str | None, spec: str) -> None:
    if split is not None:
        raise SettingsError(
            f"--split {split}: {spec!r} is a file, which has no splits",
            "leave it out, or name the collection instead of its file",
        )


def reported_by(spec: str, split: str) -> str | None:
    """The data set whose papers report on this split of a collection.

    None where names leave that open: a folder counts where its own says ms marco, or the split
    is dev.small.
    """
    scheme, _, location = spec.partition(":")
    if scheme == "irds":
        name = location.strip("/")
        name = name if name.endswith(f"/{split}") else f"{name}/{split}"
        return next((title for title, known in _BY_ID.items() if known.fullmatch(name)), None)
    if not split.startswith(_DEVELOPMENT):
        return None
    if scheme == "hf" and _PUBLISHED.fullmatch(location):
        return "MS MARCO"
    folder = Path(spec if Path(spec).exists() else location or spec).resolve()
    names = (folder.parent.name if folder.is_file() else folder.name).lower()
    certain = "msmarco" in re.sub(r"[^a-z]", "", names) or split == "dev.small"
    return "MS MARCO" if certain else None
