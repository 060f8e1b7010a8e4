"""Searcher = encoder + index: queries in, rankings out."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast

from isthmus.collections import Problems
from isthmus.collections.in_memory import called
from isthmus.config.models import PACKAGE, on_this_disk
from isthmus.errors import InputError, MismatchError, SettingsError, lone_surrogate
from isthmus.indexes.long_documents import LongDocuments
from isthmus.indexes.segments.index import open_index
from isthmus.progress import notice
from isthmus.records import Document, Query, Ranking

if TYPE_CHECKING:
    from isthmus.indexes.bm25 import Bm25Index
    from isthmus.indexes.index import Index
    from isthmus.indexes.manifest import EncoderOrigin, Manifest

_AT_MOST = 2
_recent: dict[str, Encoder] = {}  # that searchers of this process loaded, so that none loads twice

Unit = Literal["document", "passage"]
"""What is ranked: documents, or the passages of an index that has these."""


class Encoder(Protocol):
    """An encoder, as far as a searcher needs it; for cosine, its vectors are normalised."""

    @property
    def name(self) -> str:
        """Where it came from, as messages call it."""

    @property
    def fingerprint(self) -> str:
        """A digest of weights, tokenizer and settings: equal ones give equal vectors."""

    def encode_queries(self, texts: Sequence[str]) -> Any:
        """One row per text: an array for a dense index, a sparse matrix for an inverted one."""

    def has_tokens(self, text: str) -> bool:
        """Whether anything of a text is left to encode."""


class Searcher:
    """Answers queries from one index, with the encoder that filled it (none for BM25)."""

    def __init__(self, encoder: Encoder | None, index: Index) -> None:
        self.encoder = encoder
        self.index = index
        check_encoder(index.manifest, encoder, f"index of {called(index.manifest.corpus.spec)}")

    def has_same_documents(self, other: Searcher) -> bool:
        """Whether another searcher's index holds documents of the same ids."""
        mine, theirs = self.index, other.index
        if mine.manifest.corpus.fingerprint == theirs.manifest.corpus.fingerprint:
            return True
        sample = range(0, len(mine), max(1, len(mine) // 1000))
        known = all(theirs.store.row(mine.store.id(row)) is not None for row in sample)
        return len(mine) == len(theirs) and known

    def has_same_passages(self, other: Searcher) -> bool:
        """Whether another searcher's index cut its documents into the same passages."""
        mine, theirs = (one.index.manifest.identity() for one in (self, other))
        return mine.get("passages") == theirs.get("passages")

    def has_tokens(self, text: str) -> bool:
        """Whether anything of a text is left to search for."""
        if self.encoder is None:
            return cast("Bm25Index", self.index).has_tokens(text)
        return self.encoder.has_tokens(text)

    def search(
        self, queries: Sequence[Query], depth: int = 10, problems: Problems | None = None
    ) -> list[Ranking]:
        """One ranking per query, at most `depth` long; empty for queries skipped as problems."""
        asked = usable(queries, self.has_tokens, depth, problems)
        ids, texts = [query.id for query in asked], [query.text for query in asked]
        answers = self.index.search(self.query_vectors(texts), depth, ids) if texts else []
        found = {ranking.query_id: ranking for ranking in answers}
        return [found.get(query.id, Ranking(query.id)) for query in queries]

    def score(self, queries: Sequence[Query], candidates: Sequence[Ranking]) -> list[Ranking]:
        """The candidates of each query by the scores they have here, which `search` gives them too.

        A document that shares no term with the query scores 0. A query that cannot be read here
        gets an empty ranking.
        """
        readable = [number for number, q in enumerate(queries) if self.has_tokens(q.text)]
        found = [Ranking(query.id) for query in queries]
        if not readable:
            return found
        vectors = self.query_vectors([queries[number].text for number in readable])
        for place, number in enumerate(readable):
            ids, query_id = candidates[number].document_ids, queries[number].id
            if ids:
                (scored,) = self.index.search(
                    vectors[place : place + 1], len(ids), [query_id], among=ids
                )
                found[number] = Ranking.sorted(query_id, dict.fromkeys(ids, 0.0) | dict(scored))
        return found

    @property
    def keeps_texts(self) -> bool:
        """Whether documents come with their texts."""
        return self.index.manifest.texts

    def documents(self, ids: Iterable[str], query: str | None = None) -> list[Document]:
        """The documents with these ids, as far as the index keeps their texts.

        In an index of passages, of each document the best one for the query; without any, the
        first.
        """
        if isinstance(self.index, LongDocuments):
            wanted = list(ids)
            asked = (
                None if query is None or not self.has_tokens(query) else self.query_vectors([query])
            )
            found = self.index.shown(asked, wanted)
            if len(found) == len(wanted):
                return found
            ids = wanted
        rows = {document_id: self.index.store.row(document_id) for document_id in ids}
        for document_id, row in rows.items():
            if row is None:
                raise InputError(
                    f"the index of {called(self.index.manifest.corpus.spec)} has no document "
                    f"{document_id!r}",
                    "give ids that a search of this index returned",
                )
        return [self.index.store.document(row) for row in rows.values() if row is not None]

    def whole(self, document_id: str) -> Document | None:
        """The document of this id, one indexed in passages put together from these, or None."""
        return whole_document(self.index, document_id)

    def query_vectors(self, texts: Sequence[str]) -> Any:
        """The queries as the index takes them: texts for BM25, vectors otherwise."""
        return texts if self.encoder is None else self.encoder.encode_queries(texts)


def whole_document(index: Index, document_id: str) -> Document | None:
    """The document of this id in an index, put together where it is of passages, or None."""
    if isinstance(index, LongDocuments):
        return index.whole(document_id)
    row = index.store.row(document_id)
    return None if row is None else index.store.document(row)


def open_documents(folder: Path) -> Index:
    """An index whose documents can be asked for, without its encoder."""
    index = open_index(folder)
    return index if index.manifest.passages is None else LongDocuments(index)


def open_searcher(
    folder: str | Path,
    model: str | None = None,
    hnsw: bool = False,
    by: Unit = "document",
    encoders: dict[str, Encoder] | None = None,
) -> Searcher:
    """A searcher over an index folder, with the encoder recorded there or found at `model`.

    In an index of passages, documents are found by their best passage, or `by` passage each by
    itself.
    By `hnsw`, a dense index is searched through the graph that must lie beside it.
    `encoders` holds those that are loaded already, and takes in one that is loaded here; without
    it, the last two of this process.
    """
    folder = Path(folder)
    index = open_index(folder, hnsw)
    if by == "passage":
        check_passages(index.manifest, folder)
    long = index.manifest.passages is not None and by == "document"
    if (origin := index.manifest.encoder) is None:
        return Searcher(None, LongDocuments(index) if long else index)
    loaded = _recent if encoders is None else encoders
    name = encoder_name(folder, origin, model)
    key = f"{origin.fingerprint} {origin.backend} {name}"
    if key not in loaded:
        loaded[key] = _query_encoder(folder, origin, name)
    while len(_recent) > _AT_MOST:
        _recent.pop(next(iter(_recent)))
    return Searcher(loaded[key], LongDocuments(index) if long else index)


def _query_encoder(folder: Path, origin: EncoderOrigin, name: str) -> Encoder:
    notice(f"{folder}: loading its encoder {name}")
    from isthmus.encoders import load_query_encoder  # brings torch, which BM25 does without

    exact = origin.backend == "torch-float32"
    return load_query_encoder(name, origin.fingerprint, exact, origin.settings)


def check_passages(manifest: Manifest, folder: Path) -> None:
    """Refuses an index of whole documents, which has no passages to find."""
    if manifest.passages is None:
        raise MismatchError(
            f"by = passage, but the index {str(folder)!r} holds complete documents",
            "leave by=passage out, or build it again: isthmus index --set passages=true",
        )


def encoder_name(folder: Path, origin: EncoderOrigin, model: str | None = None) -> str:
    """The encoder to load for an index: `model`, or the recorded one, which must be on this disk.

    An index may come from anywhere, and so does the name that it records: nothing is fetched from
    the network for it. Its fingerprint is compared before it encodes anything.
    """
    if model is not None:
        return model
    name = origin.name
    with suppress(OSError, ValueError):  # of a name that no folder can have
        inside = (folder / name).resolve()
        if inside.is_dir() and inside.is_relative_to(folder.resolve()):
            return str(inside)
    if name.startswith(PACKAGE):
        return name
    if (found := on_this_disk(name)) is not None:
        return found
    if Path(name).is_absolute():  # paths are recorded in full, hub names are not paths
        raise InputError(
            f"the encoder of the index {str(folder)!r} is no longer at {name!r}",
            "give its new path: -s model=FOLDER",
        )
    raise InputError(
        f"the index {str(folder)!r} names the encoder {name!r}, which is not on this disk",
        "if you trust it, have it fetched: "
        + shlex.join(("isthmus", "search", str(folder), "QUERY", "-s", f"model={name}")),
    )


def usable(
    queries: Sequence[Query],
    has_tokens: Callable[[str], bool],
    depth: int,
    problems: Problems | None,
) -> list[Query]:
    """The queries that have something to search for; the others are refused or counted."""
    if depth < 1:
        raise SettingsError(
            f"depth = {depth} cannot be used",
            "give the number of documents per query, 1 or more",
        )
    problems = problems or Problems()
    asked: dict[str, Query] = {}
    for query in queries:
        if lone_surrogate(query.text):
            problems.report(
                "wrong encoding",
                f"query {query.id!r}",
                f"{query.text!r} holds half of a surrogate pair in place of a character",
                "write the query in UTF-8",
            )
        elif not has_tokens(query.text):
            problems.report(
                "query without tokens",
                f"query {query.id!r}",
                f"{query.text!r} has no words to search for",
                "write the query with at least one word that is not a stop word",
            )
        elif query.id in asked:
            problems.report(
                "duplicate id",
                f"query {query.id!r}",
                f"{query.text!r} has the id of another query",
                "give every query an id of its own",
            )
        else:
            asked[query.id] = query
    return list(asked.values())


def check_encoder(manifest: Manifest, encoder: Encoder | None, where: str) -> None:
    """Refuses an encoder that is not the one that filled the index."""
    origin = manifest.encoder
    expected = manifest.encoder_fingerprint
    found = encoder.fingerprint if encoder is not None else None
    if found == expected:
        return
    if origin is None:
        what = "the index was filled by no encoder"
    elif encoder is None:
        what = f"the index was filled by the encoder {origin.name!r}, and there is none here"
    elif origin.name in (encoder.name, str(Path(encoder.name).resolve())):
        what = f"the encoder {encoder.name!r} has changed since it filled the index"
    else:
        what = f"the index was filled by the encoder {origin.name!r}, this is {encoder.name!r}"
    raise MismatchError(
        f"{where}: {what}" + (f" (fingerprint {found}, not {expected})" if origin else ""),
        "give the encoder of the index with -s model=MODEL, or build the index again with this one",
    )
