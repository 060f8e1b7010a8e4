"""Negatives from a TREC run file: what any other system found."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import Field

from isthmus.collections import read_run
from isthmus.collections.files import fingerprint
from isthmus.finetuning.mining.candidates import CorpusIds, Ranker, TrainingCorpus
from isthmus.finetuning.mining.settings import MiningSettings
from isthmus.finetuning.negatives._base import Source
from isthmus.finetuning.negatives._files import Report, known_rankings
from isthmus.progress import notice
from isthmus.records import Query, Ranking


class RunSettings(MiningSettings):
    """Which candidates are kept, and the file that ranks them."""

    file: str = Field(description="a TREC run file: query Q0 document rank score tag")


class Run(Source):
    """Takes the rankings of a run file."""

    Settings = RunSettings

    def origin(self) -> str:
        """A digest of the file."""
        return fingerprint([Path(self.settings.file)])

    def check(self, queries: Sequence[Query], corpus: CorpusIds) -> None:
        """Raises on a file of other queries or documents."""
        _rankings(self.settings.file, queries, corpus, report=lambda _: None)

    def open(self, corpus: TrainingCorpus) -> Ranker:
        """The rankings of the file, which must be of these queries and documents."""

        def rank(queries: Sequence[Query], depth: int) -> list[Ranking]:
            return _rankings(self.settings.file, queries, corpus.ids, report=notice)

        return Ranker(f"run {self.origin()}", rank, any_query=False)


def _rankings(
    file: str, queries: Sequence[Query], corpus: CorpusIds, report: Report
) -> list[Ranking]:
    problems = corpus.reading.account()
    found = read_run(file, problems).rankings
    if problems.counts:
        report(problems.summary())
    return known_rankings(found, queries, corpus, file, report)
