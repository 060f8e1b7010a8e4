"""Runs of a benchmark and their results: one small file each, which may travel between machines.

A result holds the value of every test query, so that all statistics can be computed from a folder
of such files alone.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from isthmus.config import Settings
from isthmus.config.output import whole_file
from isthmus.config.sealed_json import UnreadableError, read_mapping
from isthmus.errors import InputError, SettingsError

RUNS = "runs"
_DIGITS = 6
Scores = Annotated[dict[str, float], Field(min_length=1)]
Spent = Annotated[float, Field(ge=0)] | None


class Run(Settings):
    """One model of the grid: how it is pre-trained, what it becomes, what it is trained on."""

    method: str
    retriever: str
    task: str
    pretraining_seed: int
    finetuning_seed: int

    @property
    def name(self) -> str:
        """The readable name of its file, without the ending."""
        seeds = f"p{self.pretraining_seed}.f{self.finetuning_seed}"
        return f"{self.task}.{self.retriever}.{self.method}.{seeds}"

    def file(self, folder: Path) -> Path:
        """Where the folder of a benchmark keeps its result."""
        return folder / RUNS / f"{self.name}.json"


class Tested(Settings):
    """What the test queries of one collection gave."""

    measures: dict[str, float] = Field(description="Means over all judged queries")
    per_query: dict[str, Scores] = Field(min_length=1, description="By measure and query id")


class Cost(Settings):
    """What a run took; of pre-training, what its method took, shared with other runs."""

    pretraining_seconds: Spent = None
    pretraining_tokens: Spent = None
    finetuning_seconds: Spent = None
    index_seconds: Spent = None
    index_bytes: Spent = None
    query_seconds: Spent = Field(None, description="Seconds of one in-domain query, alone")
    parameters: Spent = None


class Result(Settings):
    """A run that is done: what its tests gave, and what it took."""

    run: Run
    tests: dict[str, Tested] = Field(min_length=1, description="By test collection")
    cost: Cost = Cost()
    settings: str = Field(description="Digest of everything that the result depends on")
    parts: dict[str, str] = Field({}, description="Digests of the parts of that: base, method, …")
    machine: dict[str, Any] = Field({}, description="Versions, commit and machine")


def write_result(folder: Path, result: Result) -> None:
    """Writes the file of a run whole, or not at all."""
    file = result.run.file(folder)
    file.parent.mkdir(parents=True, exist_ok=True)
    values = result.model_dump(mode="json")
    for test in values["tests"].values():
        for scores in test["per_query"].values():
            scores.update({query: round(value, _DIGITS) for query, value in scores.items()})
    with whole_file(file) as stream:
        json.dump(values, stream, separators=(",", ":"), ensure_ascii=False)
        stream.write("\n")


def read_result(file: Path) -> Result:
    """The result that a file holds; raises an InputError where it holds none."""
    try:
        return Result.parse(read_mapping(file), where="")
    except (UnreadableError, SettingsError) as error:
        reason = error.what if isinstance(error, SettingsError) else error
        raise InputError(
            f"{file} is damaged: {reason}", "remove the file: the run is repeated"
        ) from None
