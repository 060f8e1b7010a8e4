"""What `isthmus evaluate --collection` compares: models, BM25 and hybrids, as rankings.

Indexes and rankings are kept in the cache folder under digests of all that they depend on, so that
a second comparison begins with what the first has done, and a killed one goes on.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from isthmus._version import __version__
from isthmus.collections.files import fingerprint
from isthmus.config.cache import cache_folder, digest, one_at_a_time
from isthmus.config.models import model_folder
from isthmus.config.output import writing
from isthmus.errors import SettingsError
from isthmus.indexes.manifest import MANIFEST, Bm25Settings, stated_manifest
from isthmus.progress import notice
from isthmus.records import Query, Ranking
from isthmus.retrieval.hybrid import Retriever
from isthmus.retrieval.hybrid_folder import is_hybrid, open_hybrid, open_together
from isthmus.retrieval.many_queries import answers
from isthmus.retrieval.searcher import open_searcher
from isthmus.retrieval.verbs.index import BM25, IndexSettings, index

HYBRID = "hybrid"
_MODEL_FILES = (".safetensors", ".bin", ".json", ".txt", ".model")


@dataclass(frozen=True, slots=True)
class System:
    """A row of the report: one retriever, or several whose rankings are fused."""

    name: str
    parts: tuple[str, ...]


def systems(named: Sequence[str]) -> list[System]:
    """The systems that these names stand for, each once, in their order.

    A name is bm25, a model, an index folder, several of them joined by +, or `hybrid`: every model
    named, each fused with BM25.
    """
    found: dict[tuple[str, ...], None] = {}
    for name in named:
        parts = _parts(name)
        for one in _with_bm25(named) if parts == (HYBRID,) else [parts]:
            found[one] = None
    every = {part for parts in found for part in parts}
    lasts = Counter(Path(part).name for part in every)
    short = {part: last if lasts[last := Path(part).name] == 1 else part for part in every}
    return [System("+".join(short[part] for part in parts), parts) for parts in found]


def _parts(name: str) -> tuple[str, ...]:
    parts = (name,) if Path(name).exists() else tuple(name.split("+"))
    if not all(parts) or (len(parts) > 1 and HYBRID in parts):
        raise SettingsError(
            f"--models {name!r} names no system",
            "give bm25, a model, an index folder, several of them joined by one + (A+B), or "
            "hybrid alone",
        )
    for part in parts:
        close = difflib.get_close_matches(part.lower(), (BM25, HYBRID), n=1, cutoff=0.7)
        if close and part not in (BM25, HYBRID) and not Path(part).exists():
            raise SettingsError(
                f"--models: there is no system named {part!r}",
                f"write {close[0]}, or name a model or an index folder",
            )
    return parts


def _with_bm25(named: Sequence[str]) -> list[tuple[str, ...]]:
    models = [name for name in named if len(_parts(name)) == 1 and name not in (BM25, HYBRID)]
    if not models:
        raise SettingsError(
            "--models hybrid fuses every model that is named with BM25, and none is named",
            "name a dense or a sparse model too: --models MODEL hybrid",
        )
    return [(name, BM25) for name in models]


@dataclass(frozen=True)
class Searches:
    """A corpus and the queries that every system answers, `depth` documents deep."""

    corpus: str
    fingerprint: str
    queries: Sequence[Query]
    depth: int
    settings: IndexSettings

    @cached_property
    def _asked(self) -> str:
        return digest(*(text for query in self.queries for text in (query.id, query.text)))

    def origin(self, part: str) -> str:
        """A digest of all that the rankings of a system's part depend on, besides the corpus."""
        if part == BM25:
            return BM25
        if is_hybrid(part):
            return fingerprint([Path(part) / "hybrid.json"])
        if (Path(part) / MANIFEST).is_file():
            return digest(repr(stated_manifest(Path(part)).identity()))
        folder = Path(model_folder(part, "--models"))
        if folder.is_dir():
            files = sorted(file for file in folder.rglob("*") if file.suffix in _MODEL_FILES)
            return digest(
                folder.name, fingerprint(files, root=folder)
            )  # a name may tell its family
        from isthmus.encoders import load_encoder  # of a hub name it alone knows

        return load_encoder(part).fingerprint

    def rankings(self, part: str, origin: str) -> dict[str, Ranking]:
        """The rankings of one part of a system, by query id; from the cache if they are there."""
        if is_hybrid(part) or (Path(part) / MANIFEST).is_file():
            return self._searched(
                open_hybrid(part) if is_hybrid(part) else open_together([part])[0]
            )
        # What is there for the others alone is left out: it would be refused, or said to be unused.
        chosen = self.settings.model_copy(update={"bm25": Bm25Settings()})
        if part == BM25:
            chosen = self.settings.for_bm25()
        settings = chosen.model_dump_json(exclude={"cluster"})
        key = digest(__version__, self.fingerprint, origin, settings)
        place = cache_folder() / "rankings" / key
        file = place.with_name(f"{key}-{digest(self._asked, str(self.depth))}.parquet")
        with one_at_a_time(place):
            if (kept := _read(file)) is None:
                model = None if part == BM25 else part
                folder = cache_folder() / "indexes" / key
                index(self.corpus, folder, model, overwrite=True, settings=chosen)
                _write(file, kept := self._searched(open_searcher(folder, model)))
            else:
                notice(f"{part}: its rankings are in the cache")
        return {query.id: kept.get(query.id, Ranking(query.id)) for query in self.queries}

    def _searched(self, retriever: Retriever) -> dict[str, Ranking]:
        batches = answers(retriever, self.queries, self.depth)
        return {ranking.query_id: ranking for batch in batches for ranking in batch}


def _write(file: Path, rankings: Mapping[str, Ranking]) -> None:
    entries = [(r.query_id, i, score) for r in rankings.values() for i, score in r]
    names = ("query", "document", "score")
    columns = zip(*entries, strict=True) if entries else ((), (), ())
    kinds = (pa.large_string(), pa.large_string(), pa.float64())
    table = pa.table(
        {name: pa.array(c, kind) for name, c, kind in zip(names, columns, kinds, strict=True)}
    )
    partial = file.with_name(f".{file.name}.partial")
    with writing(file):
        pq.write_table(table, partial)
        partial.replace(file)


def _read(file: Path) -> dict[str, Ranking] | None:
    try:
        columns = pq.read_table(file).to_pydict()
        found: dict[str, list[tuple[str, float]]] = {}
        for query, document, score in zip(*columns.values(), strict=True):
            found.setdefault(query, []).append((document, score))
    except (OSError, ValueError, TypeError):  # absent, or damaged: it is made again
        return None
    return {
        query: Ranking(query, tuple(i for i, _ in entries), tuple(s for _, s in entries))
        for query, entries in found.items()
    }
