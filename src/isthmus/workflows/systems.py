"""The one way from a system to its rankings, for all that compares systems.

A system is a model, an index, a field of one (`docs.idx/sparse-16`), a run, BM25, or several of
them fused (`bm25+MODEL+tokens`: with the token vectors of the model too). Indexes that are made for
a comparison are kept in the cache folder under digests of all that they depend on, so that a second
comparison only searches, and a killed one resumes.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import xxhash

from isthmus._version import __version__
from isthmus.collections import Collection, Judged, Problems, read_run
from isthmus.collections.files import fingerprint
from isthmus.collections.problems import ReadingSettings
from isthmus.config.cache import cache_folder, digest, one_at_a_time
from isthmus.config.models import PACKAGE, full_name, model_folder
from isthmus.errors import InputError, MismatchError, SettingsError, shown
from isthmus.indexes.languages import AUTO
from isthmus.indexes.manifest import (
    Bm25Field,
    Bm25Settings,
    DenseField,
    FieldAbout,
    Manifest,
    TokensField,
    index_folder,
    is_index,
    read_manifest,
)
from isthmus.progress import notice
from isthmus.records import Query, Ranking, Run
from isthmus.retrieval.fusion import fuse, fusions
from isthmus.retrieval.index import BM25, IndexSettings, index
from isthmus.retrieval.many_queries import answers
from isthmus.retrieval.passage_cutter import chosen_cutter
from isthmus.retrieval.searcher import Retriever, Searcher, encoder_key, open_searcher

_USUAL = IndexSettings()
TOKENS = "tokens"
"""The part of a fusion that compares the token vectors of its model with what the others found."""
_MODEL_FILES = (".safetensors", ".bin", ".json", ".txt", ".model")


@dataclass(frozen=True, eq=False)
class Opened:
    """A part of a system that is in memory: a run, an index or an encoder."""

    name: str
    thing: Any


Part: TypeAlias = str | Opened


@dataclass(frozen=True, slots=True)
class System:
    """A row of a report: one part, or several whose rankings are fused."""

    name: str
    parts: tuple[Part, ...]


def systems(given: Any) -> list[System]:
    """The systems that are meant, each once, in their order.

    They are a sequence, one alone, or a mapping that gives them names. Each is a text, a run, an
    opened index or encoder, or a sequence of several that are fused.
    """
    if isinstance(given, Mapping):
        return [System(str(name), _parts(one)) for name, one in given.items()]
    several = given if isinstance(given, list | tuple) else [given]
    found = list(dict.fromkeys(_parts(one) for one in several))
    names = ["+".join(map(_short, parts)) for parts in found]
    seen = Counter[str]()
    rows = []
    for name, parts in zip(names, found, strict=True):
        if names.count(name) > 1 and all(isinstance(part, str) for part in parts):
            name = "+".join(map(str, parts))
        seen[name] += 1
        rows.append(System(name if seen[name] == 1 else f"{name} {seen[name]}", parts))
    return rows


def _short(part: Part) -> str:
    if isinstance(part, Opened):
        return part.name
    path = Path(part.removeprefix(PACKAGE))
    return path.stem if Path(part).is_file() else path.name


def _parts(given: Any) -> tuple[Part, ...]:
    if isinstance(given, str | Path):
        return _named_parts(str(given))
    if isinstance(given, list | tuple):
        return tuple(part for one in given for part in _parts(one))
    if isinstance(given, Run):
        return (Opened(given.name, given),)
    if isinstance(given, Mapping):
        return (Opened("run", _in_memory(given)),)
    if hasattr(given, "folder"):  # an opened index, or an adaptation
        return (str(given.folder),)
    if hasattr(given, "encode_queries"):
        return (Opened(_short(str(given.name)), given),)
    if hasattr(given, "search"):
        return (Opened(str(getattr(given, "name", "index")), given),)
    raise InputError(
        f"{shown(given)}, of type {type(given).__name__}, names no system",
        "give a model, an index, a run file, bm25, A+B, a run {query: {document: score}}, or an "
        "opened index or encoder",
    )


def _in_memory(run: Mapping[str, Mapping[str, float]]) -> Run:
    found = {}
    for query, scores in run.items():
        if not (isinstance(scores, Mapping) and all(isinstance(x, Real) for x in scores.values())):
            raise InputError(
                f"the run in memory has {shown(scores)} for {query!r}, and no numbers by document",
                "give {query: {document: score}}, in a list of systems or under its name",
            )
        by_id = {str(document): score for document, score in scores.items()}
        found[str(query)] = Ranking.sorted(str(query), by_id)
    return Run("run", found)


def _named_parts(name: str) -> tuple[Part, ...]:
    parts = (name,) if Path(name).exists() else tuple(name.split("+"))
    if not all(parts):
        raise SettingsError(
            f"{name!r} names no system",
            "give bm25, a model, an index or a field of one (INDEX/FIELD), a run file, or several "
            "of them joined by + (A+B)",
        )
    for part in parts:
        known = part in (BM25, TOKENS) or Path(part).exists()
        if not known and difflib.get_close_matches(part.lower(), (BM25,), n=1, cutoff=0.7):
            raise SettingsError(
                f"there is no system named {part!r}",
                f"write {BM25}, or name a model, an index or a run file",
            )
    return parts


class Place(NamedTuple):
    """An index, and the one field of it that is meant; None: all, fused as the index says."""

    folder: Path
    field: str | None = None


def index_at(part: Part) -> Place | None:
    """The index that a part names, or a field of one: INDEX/FIELD; INDEX may be of `adapt`."""
    if isinstance(part, Opened) or part == BM25:
        return None
    if is_index(place := index_folder(part)):
        return Place(place)
    name, place = Path(part).name, index_folder(Path(part).parent)
    if Path(part).exists() or not is_index(place):
        return None
    read_manifest(place).field(name)
    return Place(place, name)


def is_run(part: Part) -> bool:
    """Whether a part has its rankings already."""
    if isinstance(part, Opened):
        return isinstance(part.thing, Run)
    return Path(part).is_file()


def judged_queries(collection: Collection, split: str) -> tuple[list[Query], Judged]:
    """The queries of a split that count, and what is known of their right documents."""
    judged = Judged.of(collection, split)
    return [query for query in collection.queries() if query.id in judged.queries], judged


def run_of(
    name: str,
    retriever: Retriever,
    queries: Sequence[Query],
    depth: int,
    problems: Problems | None = None,
) -> Run:
    """What a retriever answers to all queries, `depth` documents each."""
    batches = answers(retriever, queries, depth, problems)
    return Run(name, {ranking.query_id: ranking for batch in batches for ranking in batch})


def fingerprint_of(nested: Mapping[str, Any]) -> str:
    """A digest of rankings or judgements by query."""
    found = xxhash.xxh3_128()
    for query in sorted(nested):
        entries = dict(nested[query])
        found.update("\0".join([query, *entries]).encode())
        found.update(np.fromiter(entries.values(), float, len(entries)).tobytes())
    return found.hexdigest()


@dataclass(frozen=True)
class Searches:
    """Documents and the queries that every system answers, `depth` documents deep.

    Without a `corpus`, only runs and indexes have rankings; without queries, only runs.
    """

    corpus: str | None
    fingerprint: str
    queries: Sequence[Query]
    depth: int
    settings: IndexSettings = _USUAL
    problems: Problems | None = None
    indexes: Sequence[Path] = ()
    """Folders of indexes, whose fields are searched where they are what would be built."""

    def origin(self, part: Part) -> str:
        """A digest of all that the rankings of a part depend on, besides the documents."""
        if isinstance(part, Opened):
            thing = part.thing
            if isinstance(thing, Run):
                return fingerprint_of(thing.rankings)
            return str(getattr(thing, "fingerprint", id(thing)))
        if part == BM25:
            return BM25
        if is_run(part):
            return fingerprint([Path(part)])
        if (place := index_at(part)) is not None:
            manifest = read_manifest(place.folder)
            return digest(repr(manifest.identity()), repr(manifest.fusion), place.field or "")
        folder = Path(model_folder(part, "the system"))
        if folder.is_dir():
            files = sorted(file for file in folder.rglob("*") if file.suffix in _MODEL_FILES)
            return digest(folder.name, fingerprint(files, root=folder))  # names tell families
        from isthmus.encoders import load_encoder  # of a hub name it alone knows

        return load_encoder(part).fingerprint

    def runs(self, rows: Sequence[System], fusion: str, depth: int) -> list[Run]:
        """The answers of systems, `depth` documents deep; of several parts, fused.

        Given runs are left as deep as they are, which measures without a cutoff depend on.
        """
        with_tokens = {model_of(row) for row in rows if TOKENS in row.parts}
        parts = dict.fromkeys(part for row in rows for part in row.parts if part != TOKENS)
        rankings = {part: self.rankings(part, part in with_tokens) for part in parts}
        found = []
        for row in rows:
            each = [rankings[part] for part in row.parts if part != TOKENS]
            if TOKENS in row.parts:
                each.append(self._compared(model_of(row), self._fused(each, fusion, depth)))
            best: Mapping[str, Ranking] = each[0]
            if len(each) == 1 and not is_run(row.parts[0]):
                best = {query: one.top(depth) for query, one in each[0].items()}
            elif len(each) > 1:
                best = self._fused(each, fusion, depth)
            found.append(Run(row.name, best))
        return found

    def _compared(self, model: Part, others: Mapping[str, Ranking]) -> dict[str, Ranking]:
        """The first documents of other parts, ranked by the token vectors of a model."""
        searcher = self._searcher_of(model, with_tokens=True, tokens=True)
        (field,) = searcher.fields
        first = [
            others.get(query.id, Ranking(query.id)).top(searcher.fusion.compared)
            for query in self.queries
        ]
        found = searcher.compared(field, self.queries, first)
        return {ranking.query_id: ranking for ranking in found}

    def _fused(
        self, each: Sequence[Mapping[str, Ranking]], fusion: str, depth: int
    ) -> dict[str, Ranking]:
        load, alike = fusions.load(fusion, where="fusion"), [1.0] * len(each)
        queries = dict.fromkeys(query for one in each for query in one)
        return {
            query: fuse([one.get(query, Ranking(query)) for one in each], alike, load, depth)
            for query in queries
        }

    def rankings(self, part: Part, with_tokens: bool = False) -> Mapping[str, Ranking]:
        """The rankings of one part of a system, by query id.

        A model that has to be indexed is so `with_tokens` where a fusion will compare these.
        """
        thing = part.thing if isinstance(part, Opened) else None
        if isinstance(thing, Run):
            return thing.rankings
        if isinstance(part, str) and is_run(part):
            return read_run(part, self.problems).rankings
        if not self.queries:
            raise SettingsError(
                f"{part if isinstance(part, str) else part.name!r} has to search, and judgements "
                "alone have no queries",
                "give the collection in place of its qrels, or run files to measure",
            )
        if thing is not None and not hasattr(thing, "encode_queries"):
            return self._searched(thing)
        if (place := index_at(part)) is not None:
            return self._searched(open_searcher(place.folder, place.field))
        return self._searched(self._searcher_of(part, with_tokens))

    def _searcher_of(self, part: Part, with_tokens: bool, tokens: bool = False) -> Searcher:
        """A searcher over the field of a model or of BM25, or over that of its token vectors."""
        return self._at_hand(part, tokens) or self._indexed(part, with_tokens, tokens)

    def _indexed(self, part: Part, with_tokens: bool, tokens: bool) -> Searcher:
        """A searcher over a field of an index of this part alone, which is kept in the cache."""
        if self.corpus is None:
            raise SettingsError(
                f"{part!r} has to be indexed, and an opened collection does not say where it is",
                "give the collection by its path or name",
            )
        name, model = (part, part) if isinstance(part, str) else (part.name, part.thing)
        chosen = self._settings_of(part, with_tokens)
        settings = chosen.model_dump_json(exclude={"cluster"})
        key = digest(__version__, self.fingerprint, self.origin(part), settings)
        folder = cache_folder() / "indexes" / key
        with one_at_a_time(folder):
            if is_index(folder):
                notice(f"{name}: its index is in the cache")
            else:
                notice(f"{name}: its index is kept in {cache_folder()}")
                index(self.corpus, folder, model, overwrite=True, settings=chosen)
        first, *further = read_manifest(folder).fields
        return _open(folder, further[0] if tokens and further else first, model)

    def _settings_of(self, part: Part, with_tokens: bool) -> IndexSettings:
        """The settings of an index of this part alone, without what would be refused or unused."""
        if part != BM25:
            changes: dict[str, Any] = {"bm25": False, "sparse_sizes": []}
            if not (with_tokens or gives_tokens_alone(part)):
                changes["tokens"] = False
            return self.settings.model_copy(update=changes)
        kept = ("titles", "block_size", "memory", *ReadingSettings.model_fields)
        values = {name: getattr(self.settings, name) for name in kept}
        return IndexSettings(**values, bm25=self.settings.bm25 or Bm25Settings())

    def _at_hand(self, part: Part, tokens: bool) -> Searcher | None:
        """A searcher over a field in which this part has these documents already, if any."""
        name, model = (part, part) if isinstance(part, str) else (part.name, part.thing)
        for folder in self.indexes:
            manifest = read_manifest(folder)
            if manifest.corpus.fingerprint != self.fingerprint:
                continue
            for field, about in manifest.fields.items():
                if not self._fits(about, model):
                    continue
                try:
                    opened = _open(folder, field, model)
                except MismatchError:  # other weights than those that filled it
                    continue
                if model != BM25 and not self._cuts_alike(manifest, opened.encoders[field]):
                    continue
                if not tokens:
                    notice(f"{_short(name)}: it is in {folder} already")
                    return opened
                if (beside := _tokens_of(manifest, about)) is not None:
                    return _open(folder, beside, model)
        return None

    def _fits(self, found: FieldAbout, model: Any) -> bool:
        """Whether a field is the one that would be built of a model, as far as names tell."""
        wanted = self.settings
        if isinstance(found, Bm25Field):
            words = wanted.bm25 or Bm25Settings()
            same = words.language in (AUTO, found.settings.language)
            same = same and words.resolved(found.settings.language) == found.settings
            return same and model == BM25 and found.titles == (wanted.titles is not False)
        if model == BM25 or wanted.chosen() or found.encoder.backend != wanted.encoding.backend:
            return False
        stored: Any = wanted.sparse
        if isinstance(found, DenseField):  # with a graph or without: it is searched exactly
            stored = wanted.dense.model_copy(update={"hnsw": found.settings.hnsw})
        if not isinstance(found, TokensField) and found.settings != stored:
            return False
        if isinstance(found, TokensField) != gives_tokens_alone(
            model if isinstance(model, str) else Opened("", model)
        ):
            return False
        if isinstance(model, str):
            names = {full_name(model), full_name(model_folder(model, "the system"))}
            return found.encoder.name in names
        return bool(found.encoder.fingerprint == model.fingerprint)

    def _cuts_alike(self, found: Manifest, encoder: Any) -> bool:
        """Whether an index has the passages that one of this encoder alone would have."""
        cutter = chosen_cutter(self.settings.passages, [encoder])
        both = (found.passages, None if cutter is None else cutter.cut)
        one, other = (cut and cut.model_copy(update={"model": None}) for cut in both)
        return one == other

    def _searched(self, retriever: Retriever) -> Mapping[str, Ranking]:
        return run_of("", retriever, self.queries, self.depth, Problems("skip")).rankings


def model_of(row: System) -> Part:
    """The model whose token vectors a row compares."""
    models = [one for one in row.parts if one not in (BM25, TOKENS) and not is_run(one)]
    if len(models) != 1 or index_at(models[0]) is not None:
        raise SettingsError(
            f"{row.name}: {TOKENS} are those of a model, and this fuses {len(models) or 'none'}",
            f"name one: {BM25}+MODEL+{TOKENS}; an index with token vectors needs no {TOKENS}",
        )
    return models[0]


def gives_tokens_alone(part: Part) -> bool:
    """Whether a model has a vector for each token, and none for a text."""
    if isinstance(part, Opened):
        return getattr(part.thing, "kind", "") == TOKENS
    from isthmus.encoders.layouts import layout_of

    return layout_of(model_folder(part, "the system")) is not None


def _tokens_of(manifest: Manifest, about: FieldAbout) -> str | None:
    """The field of the token vectors of an encoder that filled another field."""
    if about.encoder is None:
        return None
    for name, field in manifest.fields.items():
        same = field.encoder and field.encoder.fingerprint == about.encoder.fingerprint
        if same and isinstance(field, TokensField):
            return name
    return None


def index_folders(parts: Sequence[Part]) -> list[Path]:
    """The folders of all indexes among the parts of systems."""
    found = (index_at(part) for part in parts)
    return list(dict.fromkeys(one.folder for one in found if one is not None))


def _open(folder: Path, field: str, model: Any) -> Searcher:
    """A searcher over a field of an index, with its encoder by name or as it is loaded."""
    if isinstance(model, str):
        return open_searcher(folder, field, None if model == BM25 else model)
    origin = read_manifest(folder).fields[field].encoder
    assert origin is not None, "an encoder filled it"
    return open_searcher(folder, field, encoders={encoder_key(origin): model})
