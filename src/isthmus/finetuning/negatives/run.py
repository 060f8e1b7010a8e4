"""Negatives from a TREC run file: what any other system found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic import Field

from isthmus.collections import Problems, read_run
from isthmus.finetuning.mining.settings import MiningSettings
from isthmus.finetuning.negatives._files import FileSource
from isthmus.records import Query, Ranking


class RunSettings(MiningSettings):
    """Which candidates are kept, and the file that ranks them."""

    file: str = Field(description="a TREC run file: query Q0 document rank score tag")


class Run(FileSource):
    """Takes the rankings of a run file."""

    Settings = RunSettings
    kind = "run file"

    def read(self, queries: Sequence[Query], problems: Problems) -> Mapping[str, Ranking]:
        """All rankings of the file."""
        return read_run(self.settings.file, problems).rankings
