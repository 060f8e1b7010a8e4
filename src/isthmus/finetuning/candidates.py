"""Candidates: what a source ranks for each query, cached by content."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt
import xxhash
from numpy.lib.format import open_memmap
from pydantic import Field, model_validator

from isthmus.collections import Collection, Corpus, Problems, open_corpus
from isthmus.collections.problems import ReadingSettings
from isthmus.config import Settings
from isthmus.config.cache import cache_folder, digest, one_at_a_time
from isthmus.config.output import whole_folder
from isthmus.indexes.manifest import FORMAT, is_index
from isthmus.progress import Bar
from isthmus.records import Document, Passage, Query, Ranking
from isthmus.retrieval.index import BM25, IndexSettings, index
from isthmus.retrieval.searcher import Searcher, open_searcher
from isthmus.text.corpus import TokenisedCorpus
from isthmus.text.passages import Cutter

Rows = npt.NDArray[np.int32]
Scores = npt.NDArray[np.float32]
NOTHING = -1
"""Fills rankings that are shorter than others."""

_FORMAT = 1  # of what is ranked
_QUERIES_AT_ONCE = 256


@dataclass(frozen=True)
class CorpusIds:
    """The ids of a corpus: enough to tell whether a file belongs to it."""

    rows: Mapping[str, int]  # of every document id
    reading: ReadingSettings = field(default_factory=ReadingSettings)


class PassageCorpus(Corpus):
    """The passages of a corpus."""

    def __init__(self, corpus: Corpus, cut: Callable[[], Cutter]) -> None:
        self.whole = corpus
        self.spec = corpus.spec
        self._cut = cut

    @cached_property
    def cutter(self) -> Cutter:
        """What cuts the documents."""
        return self._cut()

    def documents(self) -> Iterator[Document]:
        """Every passage of every document."""
        return self.cutter.passages(self.whole.documents())

    def fingerprint(self) -> str:
        """A digest of the documents and of how they are cut."""
        cut = self.cutter.cut.model_dump_json(exclude={"model"})
        return xxhash.xxh3_128_hexdigest(f"{self.whole.fingerprint()} {cut}".encode())


class _Rows(Corpus):
    """A corpus as it is indexed: passages are documents, whose texts begin with their headings."""

    def __init__(self, corpus: Corpus) -> None:
        self._corpus = corpus
        self.spec = corpus.spec

    def documents(self) -> Iterator[Document]:
        """Every document, or passage."""
        for one in self._corpus.documents():
            text = one.contents(titles=False)
            yield Document(one.id, text, one.title) if isinstance(one, Passage) else one

    def fingerprint(self) -> str:
        """A digest of the corpus."""
        return self._corpus.fingerprint()

    def count(self) -> int | None:
        """The number of documents where that is known without reading them."""
        return self._corpus.count()


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
    cutter: Cutter | None = None  # of the passages of which it consists; None: whole documents

    def searcher(self, fingerprint: str, model: str = BM25, **settings: Any) -> Searcher:
        """A searcher of its documents, or passages, over an index in the cache.

        `fingerprint` identifies the model and the settings that change results.
        """
        chosen = IndexSettings(passages=False, tokens=False, **settings, **dict(self.reading))
        corpus: Corpus = open_corpus(self.spec, chosen.account())
        if (cutter := self.cutter) is not None:
            corpus = PassageCorpus(corpus, lambda: cutter)
        folder = searched(corpus, self.fingerprint, fingerprint, model, chosen)
        return open_searcher(folder, model=None if model == BM25 else model)

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
    corpus: Corpus, source: str, fingerprint: str, model: str, settings: IndexSettings
) -> Path:
    """The folder of an index of a corpus in the cache, built if it is missing.

    `source` identifies the corpus, `fingerprint` the model and the settings that change results.
    """
    folder = cache_folder() / "indexes" / digest(str(FORMAT), source, fingerprint)
    with one_at_a_time(folder):
        if not is_index(folder):
            index(_Rows(corpus), folder, model, settings=settings)
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
