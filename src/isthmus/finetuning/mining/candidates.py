"""Candidates: what a source ranks for each query, cached by content."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt
from numpy.lib.format import open_memmap
from pydantic import Field, model_validator

from isthmus.collections import Collection, Problems
from isthmus.collections.problems import ReadingSettings
from isthmus.config import Settings
from isthmus.config.cache import cache_folder, digest, one_at_a_time
from isthmus.config.output import whole_folder
from isthmus.indexes.manifest import MANIFEST
from isthmus.progress import Bar
from isthmus.records import Query, Ranking
from isthmus.retrieval.searcher import Searcher, open_searcher
from isthmus.retrieval.verbs.index import IndexSettings, index
from isthmus.text.corpus import TokenisedCorpus
from isthmus.text.passages import PassageSettings

Rows = npt.NDArray[np.int32]
Scores = npt.NDArray[np.float32]
NOTHING = -1
"""Fills rankings that are shorter than others."""

_FORMAT = 1
_QUERIES_AT_ONCE = 256


@dataclass(frozen=True)
class CorpusIds:
    """The ids of a corpus: enough to tell whether a file belongs to it."""

    rows: Mapping[str, int]  # of every document id
    reading: ReadingSettings = field(default_factory=ReadingSettings)


@dataclass(frozen=True)
class TrainingCorpus:
    """The corpus in which candidates are searched: a collection, its spec and its tokens.

    `fingerprint` identifies the documents that are read: the collection, and what is skipped.
    """

    spec: str
    collection: Collection
    fingerprint: str
    tokenised: TokenisedCorpus
    titles: bool = True
    reading: ReadingSettings = field(default_factory=ReadingSettings)
    passages: PassageSettings | None = None  # of which it consists; None: whole documents

    def searcher(self, fingerprint: str, model: str | None = None, **settings: Any) -> Searcher:
        """A searcher of its documents, or passages, over an index in the cache.

        `fingerprint` identifies the model and the settings that change results.
        """
        chosen = IndexSettings(
            texts=False, passages=self.passages or False, **settings, **dict(self.reading)
        )
        folder = searched(self.spec, self.fingerprint, fingerprint, model, chosen)
        return open_searcher(folder, model, by="passage" if self.passages else "document")

    @cached_property
    def rows(self) -> dict[str, int]:
        """The row of every document id."""
        return self.tokenised.row_of_id()

    @property
    def ids(self) -> CorpusIds:
        """The row of every document id, and how files of such ids are read."""
        return CorpusIds(self.rows, self.reading)


@dataclass(frozen=True)
class Ranker:
    """Ranks documents for queries, to a depth; equal fingerprints give equal rankings."""

    fingerprint: str
    rank: Callable[[Sequence[Query], int], Iterable[Ranking]]
    any_query: bool = True  # False: only those of a file


@dataclass(frozen=True)
class Candidates:
    """The best documents of each query, best first: rows of the corpus and their scores.

    Both are [queries, depth], memory-mapped; where a ranking is shorter, NOTHING and -inf.
    """

    rows: Rows
    scores: Scores


def candidates(
    ranker: Ranker, corpus: TrainingCorpus, queries: Sequence[Query], depth: int
) -> Candidates:
    """The ranker's results, from the cache if it ranked the same queries to this depth before."""
    texts = (part for query in queries for part in (query.id, query.text))
    key = digest(str(_FORMAT), ranker.fingerprint, corpus.fingerprint, *texts)
    home = cache_folder() / "candidates"
    with one_at_a_time(home / key):
        depths = (int(folder.name.rpartition("-")[2]) for folder in home.glob(f"{key}-*"))
        found = min((deep for deep in depths if deep >= depth), default=None)
        folder = home / f"{key}-{found or depth}"
        if found is None:
            with whole_folder(folder) as partial:
                shape = len(queries), min(depth, len(corpus.tokenised))
                _write(partial, ranker.rank(queries, depth), corpus, shape)
    rows, scores = (
        np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False)[:, :depth]
        for name in ("rows", "scores")
    )
    return Candidates(rows, scores)


def searched(
    spec: str, source: str, fingerprint: str, model: str | None, settings: IndexSettings
) -> Path:
    """The folder of an index of a corpus in the cache, built if it is missing.

    `source` identifies the corpus, `fingerprint` the model and the settings that change results.
    """
    folder = cache_folder() / "indexes" / digest(source, fingerprint)
    with one_at_a_time(folder):
        if not (folder / MANIFEST).is_file():
            index(spec, folder, model or "bm25", settings=settings)
    return folder


def answers(searcher: Searcher, queries: Sequence[Query], depth: int) -> Iterator[Ranking]:
    """A ranking per query; an empty one for a query with nothing to search for."""
    with Bar("rank candidates", len(queries), "queries") as bar:
        for start in range(0, len(queries), _QUERIES_AT_ONCE):
            batch = queries[start : start + _QUERIES_AT_ONCE]
            yield from searcher.search(batch, depth, Problems("skip"))
            bar.advance(len(batch))


def _write(
    folder: Path, rankings: Iterable[Ranking], corpus: TrainingCorpus, shape: tuple[int, int]
) -> None:
    rows = open_memmap(folder / "rows.npy", "w+", np.int32, shape)
    scores = open_memmap(folder / "scores.npy", "w+", np.float32, shape)
    rows[:], scores[:] = NOTHING, -np.inf
    for number, ranking in enumerate(rankings):
        best = ranking.top(shape[1])
        rows[number, : len(best)] = [corpus.rows[document] for document in best.document_ids]
        scores[number, : len(best)] = best.scores
    for written in (rows, scores):
        written.flush()


class MiningSettings(Settings):
    """Which part of a ranking negatives are drawn from."""

    num_negatives: int = Field(15, ge=1, description="per query and epoch")
    range_min: int = Field(0, ge=0, description="ranks skipped at the top")
    range_max: int = Field(1000, ge=1, description="the deepest rank considered")
    absolute_margin: float | None = Field(
        None, ge=0, description="how far below the positive's score a negative's must lie"
    )
    relative_margin: float | None = Field(
        None, ge=0, description="as absolute_margin, but a share of the positive's score"
    )
    margin_by: Literal["source", "teacher"] = Field(
        "source", description="whose scores the margins compare"
    )

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.range_min >= self.range_max:
            raise ValueError("range_min must be below range_max")
        if self.margin_by == "teacher" and not self.has_margin:
            raise ValueError("margin_by: teacher needs absolute_margin or relative_margin")
        return self

    @property
    def has_margin(self) -> bool:
        """Whether scores decide which candidates may be negatives."""
        return self.absolute_margin is not None or self.relative_margin is not None
