"""A searcher joins an index and the encoders of its fields: queries in, rankings out."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, cast

from isthmus.collections import Problems
from isthmus.collections.in_memory import called
from isthmus.config.models import PACKAGE, on_this_disk
from isthmus.errors import InputError, MismatchError, SettingsError, lone_surrogate
from isthmus.indexes.filters import Filter
from isthmus.indexes.index import Index, Unit
from isthmus.indexes.manifest import (
    EncoderOrigin,
    Fusion,
    Manifest,
    TokensField,
    index_folder,
)
from isthmus.indexes.vectors import Mask
from isthmus.progress import notice
from isthmus.records import Document, Query, Ranking
from isthmus.retrieval.fusion import fuse, fusions
from isthmus.retrieval.matches import Matched, matched

ALL_COMPARED = 500_000
"""Stored token vectors: where there are no more, a search of them alone compares all."""
_AT_MOST = 2
_recent: dict[str, Encoder] = {}  # that searchers of this process loaded, so that none loads twice


class Encoder(Protocol):
    """An encoder, as far as a searcher needs it; for cosine, its vectors are normalised."""

    @property
    def name(self) -> str:
        """Where it came from, as messages call it."""

    @property
    def fingerprint(self) -> str:
        """A digest of weights, tokenizer and settings: equal ones give equal vectors."""

    def encode_queries(self, texts: Sequence[str]) -> Any:
        """One row per text: an array for a dense field, a sparse matrix for a sparse one."""

    def has_tokens(self, text: str) -> bool:
        """Whether anything of a text is left to encode."""


class Retriever(Protocol):
    """Anything that answers queries: a Searcher, or a RerankingSearcher over one."""

    def has_tokens(self, text: str) -> bool:
        """Whether anything of a text is left to search for."""

    def search(
        self,
        queries: Sequence[Query],
        depth: int = 10,
        problems: Problems | None = None,
        filter: Filter | None = None,  # noqa: A002 (the word that users know)
    ) -> list[Ranking]:
        """One ranking per query."""

    def documents(self, ids: Sequence[str], query: str | None = None) -> list[Document]:
        """The documents with these ids; of long ones, the best passage for the query."""

    def matched(self, query: str, shown: Sequence[Document]) -> list[Matched | None]:
        """How each of these, which `documents` gave, meets the query, word by word.

        None where no token vectors are stored that say so.
        """


class Searcher:
    """Answers queries from fields of one index, their rankings fused."""

    def __init__(
        self,
        index: Index,
        encoders: Mapping[str, Encoder],
        use: Sequence[str] = (),
        fusion: Fusion | None = None,
        by: Unit = "document",
    ) -> None:
        """Searches the fields to `use`, or all that the fusion gives a weight to.

        `encoders` are those of the fields, by name; the fusion is that of the index if None.
        """
        self.index = index
        self.encoders = encoders
        self._last: dict[int, tuple[str, Any]] = {}  # query, and what its encoder gave
        self.fusion = fusion or index.manifest.fusion
        self.by = by
        self.fields = tuple(use) or fields_of(index.manifest, self.fusion, by)
        self.finding = finding_of(index.manifest, self.fields, self.fusion, by)
        for name in {*self.fields, *self.finding}:
            origin = index.manifest.field(name).encoder
            where = f"index of {called(index.manifest.corpus.spec)}"
            check_encoder(origin, encoders.get(name), where)

    @property
    def weights(self) -> list[float]:
        """The weight of each field."""
        return [weight_of(self.fusion, name) for name in self.fields]

    def has_tokens(self, text: str) -> bool:
        """Whether any of the fields finds something to search for."""
        return any(self.reads(name, text) for name in self.fields)

    def reads(self, field: str, text: str) -> bool:
        """Whether a field finds something to search for in a text."""
        encoder = self.encoders.get(field)
        return self.index.has_tokens(field, text) if encoder is None else encoder.has_tokens(text)

    def search(
        self,
        queries: Sequence[Query],
        depth: int = 10,
        problems: Problems | None = None,
        filter: Filter | None = None,  # noqa: A002 (the word that users know)
    ) -> list[Ranking]:
        """One ranking per query, at most `depth` long; empty for queries skipped as problems.

        A query that only some fields can read (stop words alone, say) is answered by those. Of the
        documents that the filter lets through, as many are found as there are.
        """
        found = self.components(queries, depth, problems, filter)
        if len(self.fields) == 1:
            return [ranking.top(depth) for ranking in found[self.fields[0]]]
        return self.fused(found, depth)

    def components(
        self,
        queries: Sequence[Query],
        depth: int = 10,
        problems: Problems | None = None,
        filter: Filter | None = None,  # noqa: A002 (the word that users know)
    ) -> dict[str, list[Ranking]]:
        """What each field answers by itself, before fusion."""
        asked = usable(queries, self.has_tokens, depth, problems)
        if len(self.fields) > 1:
            depth = max(depth, self.fusion.candidates)
        masks = None if filter is None else self.index.masks(filter)
        vectors = self.vectors(asked)
        found = {
            name: self._answers(name, queries, asked, depth, masks, vectors)
            for name in self.finding
        }
        first: list[Ranking] = []
        for name in self.fields:
            if name not in self.finding:
                first = first or self._first(found, depth)
                found[name] = self.compared(name, asked, first, vectors)
        return found

    def _first(self, found: Mapping[str, Sequence[Ranking]], depth: int) -> list[Ranking]:
        """Of each query the documents that tokens are compared with."""
        count = self.fusion.compared
        if not any(name in self.finding for name in self.fields):  # it ranks all that is asked for
            count = max(count, depth)
        return self._fused(found, self.finding, count)

    def compared(
        self,
        field: str,
        asked: Sequence[Query],
        first: Sequence[Ranking],
        vectors: Callable[[str, Sequence[Query]], Any] | None = None,
    ) -> list[Ranking]:
        """How the token vectors of a field rank the documents of each of these rankings."""
        vectors = vectors or self.vectors(asked)
        read = [query for query in asked if self.reads(field, query.text)]
        places = {query.id: place for place, query in enumerate(read)}
        given = vectors(field, read) if read else None
        answers = []
        for ranking in first:
            scores: dict[str, float] = {}
            if given is not None and (place := places.get(ranking.query_id)) is not None:
                ids, encoder = ranking.document_ids, cast(Any, self.encoders[field])
                encode = encoder.encode_documents  # where nothing of them is stored
                scores = self.index.scored(field, given[[place]], ids, self.by, encode)
            answers.append(Ranking.sorted(ranking.query_id, scores))
        return answers

    def _answers(
        self,
        field: str,
        queries: Sequence[Query],
        asked: Sequence[Query],
        depth: int,
        masks: Sequence[Mask] | None,
        vectors: Callable[[str, Sequence[Query]], Any],
    ) -> list[Ranking]:
        """What a field finds for each query."""
        read = [query for query in asked if self.reads(field, query.text)]
        answers: dict[str, Ranking] = {}
        if read:
            ids = [query.id for query in read]
            given = vectors(field, read)
            rankings = self.index.search(field, given, depth, ids, masks, self.by)
            answers = {ranking.query_id: ranking for ranking in rankings}
        return [answers.get(query.id, Ranking(query.id)) for query in queries]

    def fused(self, found: Mapping[str, Sequence[Ranking]], depth: int) -> list[Ranking]:
        """The answers of the fields, one ranking for each query."""
        return self._fused(found, self.fields, depth)

    def _fused(
        self, found: Mapping[str, Sequence[Ranking]], fields: Sequence[str], depth: int
    ) -> list[Ranking]:
        fusion = fusions.load(self.fusion.fusion, where="fusion")
        weights = [weight_of(self.fusion, name) for name in fields]
        together = zip(*(found[name] for name in fields), strict=True)
        return [fuse(rankings, weights, fusion, depth) for rankings in together]

    def score(self, field: str, query: str, ids: Sequence[str]) -> Ranking:
        """These documents by the scores they have in a field, which `search` gives them too.

        A document that shares no term with the query scores 0.
        """
        if not ids or not self.reads(field, query):
            return Ranking("query")
        masks = self.index.masks_of(ids)
        given = self.query_vectors(field, [query])
        (found,) = self.index.search(field, given, len(ids), ["query"], masks)
        return Ranking.sorted("query", dict.fromkeys(ids, 0.0) | dict(found))

    def documents(self, ids: Sequence[str], query: str | None = None) -> list[Document]:
        """The documents with these ids.

        Of an index of passages, of each document the best one for the query; without any, the
        first. BM25 alone reads documents whole, and shows them so.
        """
        if self.by == "passage":
            return self._passages(ids)
        every = dict.fromkeys((*self.fields, *self.finding))
        named = [name for name in every if self.index.has_passages(name) and self._stores(name)]
        named.sort(key=self.finding.__contains__)  # comparing tokens tells best which it is
        field = next(iter(named), None)
        if field is None:
            return self.index.documents(ids)
        asked = None
        if query is not None and self.reads(field, query):
            asked = self.query_vectors(field, [query])
        return list(self.index.best_passages(field, asked, ids))

    def _stores(self, field: str) -> bool:
        """Whether a field has vectors, or terms: those of tokens may be computed when asked."""
        about = self.index.manifest.field(field)
        return not isinstance(about, TokensField) or about.settings.stored

    def matched(self, query: str, shown: Sequence[Document]) -> list[Matched | None]:
        """How each of these, which `documents` gave, meets the query, word by word.

        None where no token vectors are stored that say so.
        """
        for field in self.fields:
            is_tokens = isinstance(self.index.manifest.field(field), TokensField)
            if is_tokens and self._stores(field) and self.reads(field, query):
                given = self.query_vectors(field, [query])
                return matched(self.index, field, self.encoders[field], given, query, shown)
        return [None] * len(shown)

    def query_vectors(self, field: str, texts: Sequence[str]) -> Any:
        """The queries as a field takes them: texts for BM25, vectors otherwise."""
        encoder = self.encoders.get(field)
        if encoder is None:
            return list(texts)
        if len(texts) > 1:
            return encoder.encode_queries(texts)
        # One query is asked for again, to choose passages and to show why they were found.
        last = self._last.get(id(encoder))
        if last is None or last[0] != texts[0]:
            last = self._last[id(encoder)] = texts[0], encoder.encode_queries(texts)
        return last[1]

    def vectors(self, queries: Sequence[Query]) -> Callable[[str, Sequence[Query]], Any]:
        """What gives a field some of these queries, each encoded once for all fields."""
        places = {query.id: place for place, query in enumerate(queries)}
        known: dict[int, Any] = {}

        def given(field: str, some: Sequence[Query]) -> Any:
            encoder = self.encoders.get(field)
            if encoder is None or len(some) < len(queries):
                return self.query_vectors(field, [query.text for query in some])
            if id(encoder) not in known:
                known[id(encoder)] = self.query_vectors(field, [query.text for query in queries])
            return known[id(encoder)][[places[query.id] for query in some]]

        return given

    def _passages(self, ids: Sequence[str]) -> list[Document]:
        owners = list(dict.fromkeys(one.rpartition("#")[0] for one in ids))
        found: dict[str, Document] = {}
        for owner in owners:
            found |= {one.id: one for one in self.index.passages_of(owner)}
        return self.index.chosen(found, ids)


def weight_of(fusion: Fusion, field: str) -> float:
    """How much a field counts."""
    return fusion.weights.get(field, 1.0)


def finding_of(
    manifest: Manifest, fields: Sequence[str], fusion: Fusion, by: Unit
) -> tuple[str, ...]:
    """The fields that find documents for some fields to be searched.

    Token vectors are compared with what the other fields found. Alone, they are compared with all
    texts, where these are few or where there is no other field.
    """

    def tokens(name: str) -> TokensField | None:
        field = manifest.field(name)
        return field if isinstance(field, TokensField) else None

    if others := tuple(name for name in fields if tokens(name) is None):
        return others
    stored = sum(
        segment.fields[name].vectors or 0 for segment in manifest.segments for name in fields
    )
    alone = all((field := tokens(name)) and field.settings.stored for name in fields)
    try:
        named = fields_of(manifest, fusion, by)
    except (SettingsError, MismatchError):
        named = ()
    others = tuple(name for name in named if tokens(name) is None)
    return tuple(fields) if not others or (alone and stored <= ALL_COMPARED) else others


def fields_of(manifest: Manifest, fusion: Fusion, by: Unit) -> tuple[str, ...]:
    """The fields that count, of those whose rows are what is ranked."""
    for name, weight in fusion.weights.items():
        manifest.field(name)
        if weight < 0:
            raise SettingsError(
                f"weights.{name} = {weight:g} is below 0",
                "give 0 or more; 0 leaves the field out",
            )
    named = [name for name in manifest.fields if weight_of(fusion, name)]
    if not named:
        raise SettingsError("all weights are 0", "give one field a weight of more than 0")
    if by == "document":
        return tuple(named)
    found = tuple(name for name in named if manifest.has_passages(name))
    if not found:
        raise MismatchError(
            "by = passage, but no field of the index has passages",
            "leave by=passage out, or build it with a model: isthmus index … -m MODEL",
        )
    return found


def open_searcher(
    folder: str | Path,
    use: str | None = None,
    model: str | None = None,
    hnsw: bool = False,
    by: Unit = "document",
    fusion: Mapping[str, Any] | None = None,
    encoders: dict[str, Encoder] | None = None,
) -> Searcher:
    """A searcher over an index folder or output of adapt, with the encoders recorded there.

    It answers by the one field to `use`, or by all, fused as the index says and as `fusion` says
    otherwise. `model` is where the encoder is now, and `encoders` are as in `load_encoders`.
    """
    folder = index_folder(folder)

    def chosen(manifest: Manifest) -> tuple[str, ...]:
        if use is None:
            return fields_of(manifest, _fused(manifest, fusion), by)
        manifest.field(use)
        return (use,)

    def needed(manifest: Manifest) -> set[str]:
        names = chosen(manifest)
        return {*names, *finding_of(manifest, names, _fused(manifest, fusion), by)}

    index = Index.open(folder, needed, hnsw)
    fields, together = chosen(index.manifest), _fused(index.manifest, fusion)
    loaded = load_encoders(index, needed(index.manifest), model, encoders)
    return Searcher(index, loaded, fields, together, by)


def _fused(manifest: Manifest, otherwise: Mapping[str, Any] | None) -> Fusion:
    """How fields are fused: as the index says, where nothing else is said."""
    found = manifest.fusion.model_copy(update=dict(otherwise or {}))
    # A field that is searched by its name alone stays so where others are given weights.
    left_out = {name: weight for name, weight in manifest.fusion.weights.items() if not weight}
    return found.model_copy(update={"weights": left_out | found.weights})


def load_encoders(
    index: Index,
    fields: Iterable[str],
    model: str | None = None,
    encoders: dict[str, Encoder] | None = None,
) -> dict[str, Encoder]:
    """The encoders of fields, by the names of these.

    `encoders` holds those that are loaded already, by fingerprint and backend, and takes in one
    that is loaded here; without it, the last two of this process.
    """
    loaded = _recent if encoders is None else encoders
    origins = {name: index.manifest.field(name).encoder for name in fields}
    found: dict[str, Any] = {
        name: _loaded(index.folder, origin, model, loaded)
        for name, origin in origins.items()
        if origin is not None
    }
    # One that fills two fields gives both in one pass.
    both: dict[int, Any] = {}
    kept: dict[str, Any] = {} if encoders is None else encoders
    for name, encoder in found.items():
        about = index.manifest.field(name)
        if isinstance(about, TokensField) and hasattr(encoder, "with_tokens"):
            key = f"{encoder_key(about.encoder)} tokens"
            both[id(encoder)] = kept.setdefault(key, encoder.with_tokens())
    return {name: both.get(id(encoder), encoder) for name, encoder in found.items()}


def encoder_key(origin: EncoderOrigin) -> str:
    """What identifies an encoder that is loaded."""
    return f"{origin.fingerprint} {origin.backend}"


def _loaded(
    folder: Path, origin: EncoderOrigin, model: str | None, loaded: dict[str, Encoder]
) -> Encoder:
    key = encoder_key(origin) + ("" if model is None else f" {model}")
    if key not in loaded:
        name = encoder_name(folder, origin, model)
        notice(f"{folder}: loading its encoder {name}")
        from isthmus.encoders import load_query_encoder  # brings torch, which BM25 does without

        exact = origin.backend == "torch-float32"
        loaded[key] = load_query_encoder(name, origin.fingerprint, exact, origin.settings)
    while loaded is _recent and len(_recent) > _AT_MOST:
        _recent.pop(next(iter(_recent)))
    return loaded[key]


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


def check_encoder(origin: EncoderOrigin | None, encoder: Encoder | None, where: str) -> None:
    """Refuses an encoder that is not the one that filled a field."""
    expected = None if origin is None else origin.fingerprint
    found = encoder.fingerprint if encoder is not None else None
    if found == expected:
        return
    if origin is None:
        what = "the field was filled by no encoder"
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
