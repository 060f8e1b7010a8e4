"""Sources of negatives: what ranks the corpus for training queries."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from isthmus.collections import read_run
from isthmus.collections.files import fingerprint
from isthmus.config.encoding import EncodingChoice
from isthmus.config.models import model_fingerprint, model_folder, named_at
from isthmus.encoders import load_encoder
from isthmus.errors import MismatchError, SettingsError
from isthmus.finetuning.candidates import (
    CorpusIds,
    MiningSettings,
    Ranker,
    TrainingCorpus,
    answers,
)
from isthmus.finetuning.registries import NEGATIVES, negatives
from isthmus.indexes.manifest import Bm25Settings, SparseSettings
from isthmus.progress import notice
from isthmus.records import Query, Ranking


class Source(ABC):
    """Where candidates come from: one class per file of `negatives/`."""

    Settings: ClassVar[type[MiningSettings]]

    def __init__(self, settings: Any) -> None:
        self.settings = settings

    def origin(self) -> str | None:
        """A digest of the file or model that the settings name; None where they name none.

        Raises if it is missing; called before any work begins.
        """
        return None

    def check(self, queries: Sequence[Query], corpus: CorpusIds) -> None:  # noqa: B027 (most have no ids)
        """Raises if ids show that it cannot rank these documents for these queries.

        Called for all stages before the first one trains; prints no notices, as `open` does.
        """

    @abstractmethod
    def open(self, corpus: TrainingCorpus) -> Ranker:
        """The ranker of this corpus."""


def listed(chosen: Any) -> list[dict[str, Any]]:
    """The settings of each source that settings name: of one, several or none."""
    return chosen if isinstance(chosen, list) else [chosen] if chosen else []


def negative_sources(chosen: Any, teacher: bool) -> list[Source]:
    """The sources that settings name."""
    sources = []
    for number, values in enumerate(listed(chosen)):
        where = f"negatives.{number}" if isinstance(chosen, list) else "negatives"
        values = dict(values)
        source = NEGATIVES.load(str(values.pop("name", None)), where)
        settings = source.Settings.parse(values, where, under=where)
        if settings.margin_by == "teacher" and not teacher:
            raise SettingsError(
                f"{where}.margin_by = 'teacher', but there is no teacher",
                "--set teacher.name=cross_encoder --set teacher.model=NAME, or --set "
                f"{where}.margin_by=source",
            )
        sources.append(source(settings))
    return sources


class Bm25NegativesSettings(MiningSettings):
    """Which candidates are kept, and how they are scored."""

    # Not the default of an index: what Anserini mines with, and published results were trained on.
    scoring: Bm25Settings = Bm25Settings(k1=0.9, b=0.4)


@negatives("bm25")
class Bm25(Source):
    """Negatives from BM25: what shares words with the query and was not judged relevant."""

    Settings = Bm25NegativesSettings

    def open(self, corpus: TrainingCorpus) -> Ranker:
        """BM25 over an index in the cache."""
        scoring: Bm25Settings = self.settings.scoring
        fingerprint = f"bm25 titles={corpus.titles} {scoring.model_dump_json()}"

        def rank(queries: Sequence[Query], depth: int) -> Iterator[Ranking]:
            searcher = corpus.searcher(fingerprint, titles=corpus.titles, bm25=scoring)
            return answers(searcher, queries, depth)

        return Ranker(fingerprint, rank)


class RetrieverSettings(MiningSettings, EncodingChoice):
    """Which candidates are kept, the model that ranks them, and how it encodes."""

    model: str = Field(description="a run of isthmus, a folder or hub name, package:NAME")
    range_max: int = Field(200, ge=1, description="the deepest rank considered")


@negatives("retriever")
class Retriever(Source):
    """Negatives from a dense or sparse retriever: unjudged documents that it ranks high.

    Ranks the corpus by an encoder, which reads titles as it was trained to.
    """

    Settings = RetrieverSettings
    where = "negatives.model"  # the setting that names the model, for what is wrong with it

    def origin(self) -> str:
        """A digest of the weights, or a hub name."""
        model: str = self.settings.model
        return model_fingerprint(model_folder(model, self.where)) or model

    def open(self, corpus: TrainingCorpus) -> Ranker:
        """The encoder over an index in the cache."""
        model: str = self.settings.model
        chosen = self.settings.chosen()
        with named_at(self.where):
            fingerprint = load_encoder(model, chosen).fingerprint
        # Not quantised: a margin is a difference of the encoder's own scores.
        changed = {**chosen, "bm25": False, "sparse": SparseSettings(weights="float")}

        def rank(queries: Sequence[Query], depth: int) -> Iterator[Ranking]:
            return answers(corpus.searcher(fingerprint, model, **changed), queries, depth)

        return Ranker(fingerprint, rank)


Report = Callable[[str], None]


class RunSettings(MiningSettings):
    """Which candidates are kept, and the file that ranks them."""

    file: str = Field(description="a TREC run file: query Q0 document rank score tag")


@negatives("run")
class Run(Source):
    """Negatives from a TREC run file: what any other system found.

    Takes the rankings of a run file, which must be of these queries and documents.
    """

    Settings = RunSettings

    def origin(self) -> str:
        """A digest of the file."""
        return fingerprint([Path(self.settings.file)])

    def check(self, queries: Sequence[Query], corpus: CorpusIds) -> None:
        """Raises on a file of other queries or documents."""
        self._rankings(queries, corpus, report=lambda _: None)

    def open(self, corpus: TrainingCorpus) -> Ranker:
        """The rankings of the file."""

        def rank(queries: Sequence[Query], depth: int) -> list[Ranking]:
            return self._rankings(queries, corpus.ids, report=notice)

        return Ranker(f"run {self.origin()}", rank, any_query=False)

    def _rankings(
        self, queries: Sequence[Query], corpus: CorpusIds, report: Report
    ) -> list[Ranking]:
        """The rankings of these queries, without documents that the corpus does not have."""
        problems, file = corpus.reading.account(), self.settings.file
        found = read_run(file, problems).rankings
        if problems.counts:
            report(problems.summary())
        given = [found.get(query.id, Ranking(query.id)) for query in queries]
        _check_queries(given, file, report)
        return _known(given, corpus, file, report)


def _check_queries(rankings: Sequence[Ranking], file: str, report: Report) -> None:
    without = sum(not len(ranking) for ranking in rankings)
    if without == len(rankings):
        raise MismatchError(
            f"the run file {file!r} ranks documents for none of the {without:,} training queries",
            "search with the queries of the training split: isthmus search INDEX --queries …",
        )
    if without:
        report(f"{file}: {without:,} of {len(rankings):,} training queries have no ranking there")


def _known(
    rankings: Sequence[Ranking], corpus: CorpusIds, file: str, report: Report
) -> list[Ranking]:
    """The rankings without unknown documents, which are an error unless problems are skipped."""
    documents, skip = corpus.rows, corpus.reading.problems == "skip"
    kept, unknown, total = [], [], 0
    for ranking in rankings:
        known = [(found, score) for found, score in ranking if found in documents]
        if len(known) < len(ranking):
            unknown += [found for found, _ in ranking if found not in documents]
        total += len(ranking)
        ids, scores = tuple(found for found, _ in known), tuple(score for _, score in known)
        kept.append(Ranking(ranking.query_id, ids, scores))
    if unknown:
        message = (
            f"{len(unknown):,} of the {total:,} documents ranked for training queries are not "
        )
        message += f"in the corpus, {unknown[0]!r} for example"
        if not skip or len(unknown) == total:
            raise MismatchError(
                f"the run file {file!r} is of another corpus: {message}",
                "give rankings of this collection's documents"
                + ("" if skip else ", or skip the others: --set problems=skip"),
            )
        report(f"{file}: {message}; they are left out")
    return kept
