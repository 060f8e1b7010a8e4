"""Negatives from a TREC run file: what any other system found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from pydantic import Field

from isthmus.collections import read_run
from isthmus.collections.files import fingerprint
from isthmus.errors import MismatchError
from isthmus.finetuning.mining.candidates import CorpusIds, MiningSettings, Ranker, TrainingCorpus
from isthmus.finetuning.negatives._base import Source
from isthmus.progress import notice
from isthmus.records import Query, Ranking

Report = Callable[[str], None]


class RunSettings(MiningSettings):
    """Which candidates are kept, and the file that ranks them."""

    file: str = Field(description="a TREC run file: query Q0 document rank score tag")


class Run(Source):
    """Takes the rankings of a run file, which must be of these queries and documents."""

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
