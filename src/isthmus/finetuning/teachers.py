"""Teachers: sources of scores that a student learns to reproduce, and whether they are any good."""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import xxhash
from pydantic import Field

from isthmus.collections.files import fingerprint
from isthmus.config import Settings
from isthmus.config.cache import cache_folder
from isthmus.config.models import model_fingerprint, model_folder, named_at
from isthmus.encoders import cross
from isthmus.encoders.loader import load_reranker
from isthmus.errors import MismatchError
from isthmus.finetuning.candidates import (
    NOTHING,
    Candidates,
    CorpusIds,
    Rows,
    Scores,
    TrainingCorpus,
    candidates,
)
from isthmus.finetuning.development import DevelopmentSet
from isthmus.finetuning.negatives import Bm25, Retriever, Source
from isthmus.finetuning.pairs import LabelledQueries, TaughtScores
from isthmus.finetuning.registries import TEACHERS, teacher
from isthmus.finetuning.scores import ENTRY, Digests, ScoreStore, ScoreTable, digests, read_scores
from isthmus.progress import Bar, notice
from isthmus.records import Query, Ranking
from isthmus.text.corpus import TokenisedCorpus, tokenise

INSTEAD = (
    "the folder of a re-ranker that is here, stage:NAME where an earlier stage trains one, or a "
    "file of scores (teacher: {name: scores, file: FILE})"
)
"""The alternatives to a teacher that cannot be loaded."""


@dataclass(frozen=True)
class Teacher:
    """Scores documents for queries; equal fingerprints give equal scores.

    `scores` takes queries and rows of the corpus [queries, any], and returns scores of that shape,
    NaN for NOTHING.
    """

    fingerprint: str
    scores: Callable[[LabelledQueries, Rows], Scores]
    any_query: bool = True  # False: only those of a file


class TeacherSource(ABC):
    """Where a teacher comes from: one class per file of `teachers/`."""

    Settings: ClassVar[type[Settings]]

    def __init__(self, settings: Any) -> None:
        self.settings = settings

    @abstractmethod
    def origin(self) -> str:
        """A digest of the model or file that the settings name; raises if it is missing."""

    def check(self, labelled: LabelledQueries, corpus: CorpusIds) -> None:  # noqa: B027 (most have no ids)
        """Raises if ids show that it cannot score these documents for these queries.

        Called for all stages before the first one trains; prints no notices, as `open` does.
        """

    @abstractmethod
    def open(self, corpus: TrainingCorpus) -> Teacher:
        """The teacher of this corpus, ready to score."""


def teacher_source(chosen: Mapping[str, Any] | None) -> TeacherSource | None:
    """The source that settings name; None where they name none."""
    if chosen is None:
        return None
    values = dict(chosen)
    kind = TEACHERS.load(str(values.pop("name", None)), "teacher")
    source: TeacherSource = kind(kind.Settings.parse(values, "teacher", under="teacher"))
    return source


def taught_scores(teacher: Teacher, labelled: LabelledQueries, negatives: Rows) -> TaughtScores:
    """The teacher's scores of every positive and negative of these queries."""
    positives = teacher.scores(labelled, padded(labelled.positives))
    return TaughtScores(positives, teacher.scores(labelled, negatives))


def padded(rows: Sequence[Sequence[int] | Rows]) -> Rows:
    """Rows as a matrix, filled up with NOTHING."""
    matrix = np.full((len(rows), max(map(len, rows))), NOTHING, dtype=np.int32)
    for number, found in enumerate(rows):
        matrix[number, : len(found)] = found
    return matrix


_AT_ONCE = 1 << 13  # pairs: enough to batch by length, few enough to see progress


class CrossEncoderSettings(Settings):
    """The model of the teacher."""

    model: str = Field(description="a re-ranker: a run of isthmus, a folder or hub name")


@teacher("cross_encoder")
class CrossEncoder(TeacherSource):
    """A cross-encoder as teacher: one trained here, or any sequence classifier of one label.

    Scores queries and documents with a cross-encoder; scores are cached by corpus.
    """

    Settings = CrossEncoderSettings

    def origin(self) -> str:
        """A digest of the weights, or a hub name."""
        model: str = self.settings.model
        return model_fingerprint(model_folder(model, "teacher.model")) or model

    def open(self, corpus: TrainingCorpus) -> Teacher:
        """The model over the documents in its own tokens, with its earlier scores."""
        with named_at("teacher.model", INSTEAD):
            model = load_reranker(self.settings.model, where="teacher.model")
        if model.settings.titles != corpus.titles:
            notice(
                f"the teacher {model.name} is used to titles={model.settings.titles}; it reads "
                f"what its student reads, titles={corpus.titles}"
            )
        tokenised = tokenise(
            corpus.collection.documents(),
            corpus.fingerprint,
            model.tokenizer.serialised,
            corpus.titles,
        )
        assert len(tokenised) == len(corpus.tokenised), "not the same documents"
        identity = "\0".join([model.fingerprint, corpus.fingerprint, str(corpus.titles)])
        folder = cache_folder() / "teachers" / xxhash.xxh3_128_hexdigest(identity.encode())
        scorer = _Scorer(model, tokenised, ScoreStore(folder))
        return Teacher(model.fingerprint, scorer.scores)


@dataclass(frozen=True)
class _Scorer:
    model: cross.CrossEncoder
    corpus: TokenisedCorpus
    store: ScoreStore

    def scores(self, labelled: LabelledQueries, rows: Rows) -> Scores:
        texts = [query.text for query in labelled.queries]
        known_by = digests(texts)  # not by id, which may mean another query in another split
        if self._unknown(known_by, rows).any():
            with self.store.alone():
                self._add(texts, known_by, rows)
        return self.store.look_up(known_by, rows)

    def _unknown(self, known_by: Digests, rows: Rows) -> npt.NDArray[np.bool_]:
        unknown: npt.NDArray[np.bool_] = np.isnan(self.store.look_up(known_by, rows))
        unknown &= rows != NOTHING
        return unknown

    def _add(self, texts: list[str], known_by: Digests, rows: Rows) -> None:
        """Scores the pairs that the store does not have."""
        numbers, columns = np.nonzero(self._unknown(known_by, rows))
        pairs = np.unique(np.stack([numbers, rows[numbers, columns]]), axis=1)
        with Bar("score by the teacher", pairs.shape[1], "pairs") as bar:
            try:
                for start in range(0, pairs.shape[1], _AT_ONCE):
                    some, of = pairs[:, start : start + _AT_ONCE]
                    self.store.add(known_by[some], of, self._score(texts, some, of))
                    bar.advance(len(some))
            finally:
                self.store.flush()

    def _score(
        self, texts: list[str], numbers: npt.NDArray[np.int64], rows: npt.NDArray[np.int64]
    ) -> Scores:
        queries = self.model.tokens([texts[number] for number in numbers])
        return self.model.score_tokens(queries, [self.corpus.tokens(int(row)) for row in rows])


class HybridSettings(Settings):
    """The encoder, what it counts beside BM25, and how deep both rank."""

    retriever: str = Field(description="an encoder, such as the student as it was before training")
    weight: float = Field(0.5, ge=0, le=1, description="of the encoder; BM25 has the rest")
    depth: int = Field(1000, ge=2, description="documents that each ranks for a query")


@teacher("hybrid")
class Hybrid(TeacherSource):
    """BM25 and an encoder together as teacher: pseudo-labels where there is no re-ranker.

    Adds the scores of BM25 and of an encoder, each in standard deviations of its ranking.

    A document beyond the depth of a ranking is scored as its last one.
    """

    Settings = HybridSettings

    def origin(self) -> str:
        """A digest of the encoder's weights, or a hub name."""
        return self._retriever().origin()

    def open(self, corpus: TrainingCorpus) -> Teacher:
        """Both rankers over indexes in the cache."""
        given: HybridSettings = self.settings
        rankers = [Bm25(Bm25.Settings()).open(corpus), self._retriever().open(corpus)]
        weights = (1 - given.weight, given.weight)

        def scores(labelled: LabelledQueries, rows: Rows) -> Scores:
            total = np.zeros(rows.shape, np.float32)
            for ranker, weight in zip(rankers, weights, strict=True):
                total += weight * standard_scores(
                    candidates(ranker, corpus, labelled.queries, given.depth), rows
                )
            total[rows == NOTHING] = np.nan
            return total

        return Teacher(
            "\n".join([*(one.fingerprint for one in rankers), given.model_dump_json()]), scores
        )

    def _retriever(self) -> Retriever:
        found = Retriever(Retriever.Settings(model=self.settings.retriever))
        found.where = "teacher.retriever"
        return found


def standard_scores(found: Candidates, rows: Rows) -> Scores:
    """Each row's score in its query's ranking, in standard deviations from the ranking's mean.

    A row that the ranking lacks has the lowest score of it; where there is no ranking, or all of it
    scores alike, every row has 0.
    """
    scores = np.zeros(rows.shape, np.float32)
    for number, wanted in enumerate(rows):
        count = int((found.rows[number] != NOTHING).sum())
        values = np.asarray(found.scores[number, :count], np.float64)
        if not count or not (spread := values.std()):
            continue
        values = (values - values.mean()) / spread
        order = np.argsort(found.rows[number, :count])
        ranked = found.rows[number, :count][order]
        place = np.minimum(np.searchsorted(ranked, wanted), count - 1)
        scores[number] = np.where(ranked[place] == wanted, values[order][place], values.min())
    return scores


class ScoresSettings(Settings):
    """The file, and the score of pairs that it does not have."""

    file: str = Field(
        description="query, document and score separated by tabs, a TREC run file, or jsonl"
    )
    missing: float | None = Field(
        None, description="the score of pairs that are not in the file; null: they are refused"
    )


@teacher("scores")
class ScoreFile(TeacherSource):
    """A file of scores as teacher, whatever computed them."""

    Settings = ScoresSettings

    def origin(self) -> str:
        """A digest of the file."""
        return fingerprint([Path(self.settings.file)])

    def check(self, labelled: LabelledQueries, corpus: CorpusIds) -> None:
        """Raises on a file of other documents, or one without scores of positives."""
        table = _read(Path(self.settings.file), corpus, report=lambda _: None)
        self._scores(table, corpus, labelled, padded(labelled.positives))

    def open(self, corpus: TrainingCorpus) -> Teacher:
        """The scores of the file that are of this corpus."""
        settings: ScoresSettings = self.settings

        @cache  # read at the first use
        def table() -> ScoreTable:
            return _read(Path(settings.file), corpus.ids, report=notice)

        def scores(labelled: LabelledQueries, rows: Rows) -> Scores:
            return self._scores(table(), corpus.ids, labelled, rows)

        return Teacher(f"scores {self.origin()} {settings.missing}", scores, any_query=False)

    def _scores(
        self, table: ScoreTable, corpus: CorpusIds, labelled: LabelledQueries, rows: Rows
    ) -> Scores:
        settings: ScoresSettings = self.settings
        ids = [query.id for query in labelled.queries]
        found = table.look_up(digests(ids), rows)
        unknown = np.isnan(found) & (rows != NOTHING)
        if unknown.any() and settings.missing is None:
            number, column = np.argwhere(unknown)[0]
            document = next(id_ for id_, row in corpus.rows.items() if row == rows[number, column])
            raise MismatchError(
                f"{unknown.sum():,} of {(rows != NOTHING).sum():,} pairs have no score in "
                f"teacher.file {settings.file!r}, query {ids[number]!r} and document {document!r} "
                "first",
                "score these pairs too; take negatives from what was scored (negatives: {name: "
                "run, …}), and no more than every query has (lower num_negatives); or set one "
                "score for all others: --set teacher.missing=…",
            )
        found[unknown] = settings.missing
        return found


def _read(file: Path, corpus: CorpusIds, report: Callable[[str], None]) -> ScoreTable:
    problems = corpus.reading.account()
    queries, rows, scores = array("Q"), array("I"), array("f")
    known: dict[str, int] = {}
    elsewhere = 0
    for query_id, document_id, score in read_scores(file, problems):
        if query_id not in known:
            known[query_id] = int(digests([query_id])[0])
        row = corpus.rows.get(document_id)
        if row is None:
            elsewhere += 1
            continue
        queries.append(known[query_id])
        rows.append(row)
        scores.append(score)
    if elsewhere and not rows:
        raise MismatchError(
            f"teacher.file: none of the {elsewhere:,} documents scored in {str(file)!r} is in the "
            "corpus",
            "give the file that belongs to this collection",
        )
    if elsewhere:
        report(f"{file}: {elsewhere:,} scores are of documents that the corpus does not have")
    if message := problems.summary():
        report(message)
    entries = np.empty(len(rows), ENTRY)
    entries["query"], entries["row"], entries["score"] = queries, rows, scores
    return ScoreTable(entries)


_DEPTH = 20
_QUERIES = 100


def check_teacher(
    teacher: Teacher,
    sources: Sequence[Source],
    corpus: TrainingCorpus,
    chosen: DevelopmentSet,
    measure: str,
) -> dict[str, Any] | None:
    """The measure of a retriever's first results for development queries, and re-ranked.

    Reports both, and what to do if the teacher is no better. The retriever is the first source of
    negatives that can rank any query; None where there is none, or where the teacher cannot.
    """
    if not teacher.any_query:
        return None
    rankers = (source.open(corpus) for source in sources)
    ranker = next((ranker for ranker in rankers if ranker.any_query), None)
    if ranker is None:
        return None
    queries = chosen.queries[:_QUERIES]
    found = candidates(ranker, corpus, queries, _DEPTH)
    labelled = LabelledQueries(queries, [[] for _ in queries])
    taught = teacher.scores(labelled, found.rows)
    retriever, reranked = (
        chosen.mean(measure, _rankings(queries, found.rows, scores, corpus))
        for scores in (found.scores, taught)
    )
    message = (
        f"of {len(queries):,} development queries, the first {_DEPTH} as the teacher orders them: "
        f"{measure} {reranked:.3f}; as they were found: {retriever:.3f}"
    )
    if reranked <= retriever:
        message += (
            ". A TEACHER THAT IS NO BETTER has little to teach: train it longer, at a higher rate, "
            "with more negatives, or from a stronger checkpoint (in a pipeline: --set "
            "stages.reranker.model=NAME)"
        )
    notice(message)
    return {"measure": measure, "teacher": reranked, "retriever": retriever}


def _rankings(
    queries: Sequence[Query], rows: Rows, scores: Scores, corpus: TrainingCorpus
) -> Iterator[Ranking]:
    for query, places, values in zip(queries, rows, scores, strict=True):
        listed = zip(places.tolist(), values.tolist(), strict=True)
        known = {corpus.tokenised[row].id: score for row, score in listed if row != NOTHING}
        yield Ranking.sorted(query.id, known)
