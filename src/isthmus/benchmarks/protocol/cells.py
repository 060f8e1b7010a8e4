"""Cells of a benchmark and their results: one small file each, which may travel between machines.

A result holds the value of every test query, so that all statistics can be computed from a folder
of such files alone.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from isthmus.config import Settings
from isthmus.config.output import whole_file
from isthmus.config.sealed_json import UnreadableError, read_mapping
from isthmus.errors import InputError

CELLS = "cells"
_DIGITS = 6


class Cell(Settings):
    """One model of the grid: where it starts, what it becomes, what it is trained on, seeds."""

    start: str
    kind: str
    task: str
    pretraining_seed: int
    finetuning_seed: int

    @property
    def name(self) -> str:
        """The readable name of its file, without the ending."""
        seeds = f"p{self.pretraining_seed}.f{self.finetuning_seed}"
        return f"{self.task}.{self.kind}.{self.start}.{seeds}"

    def file(self, folder: Path) -> Path:
        """Where the folder of a benchmark keeps its result."""
        return folder / CELLS / f"{self.name}.json"


class Tested(Settings):
    """What the test queries of one collection gave."""

    measures: dict[str, float] = Field(description="means over all judged queries")
    per_query: dict[str, dict[str, float]] = Field(description="by measure and query id")
    first: dict[str, str] = Field({}, description="the best document of each query")


class Cost(Settings):
    """What a cell took; of pre-training, what its start took, shared with other cells."""

    pretraining_seconds: float | None = None
    pretraining_tokens: float | None = None
    finetuning_seconds: float | None = None
    index_seconds: float | None = None
    index_bytes: float | None = None
    query_seconds: float | None = Field(None, description="of one query, alone, in-domain")
    parameters: float | None = None


class CellResult(Settings):
    """A cell that was run: its tests, or the reason for which there are none."""

    cell: Cell
    status: Literal["done", "failed"]
    reason: str | None = None
    tests: dict[str, Tested] = Field({}, description="by test collection")
    cost: Cost = Cost()
    probes: dict[str, float] = Field({}, description="of the pre-trained model, by probe")
    probes_before: dict[str, float] = Field(
        {}, description="of the model that the pre-training went on from, on the same documents"
    )
    settings: str = Field(description="a digest of everything that the result depends on")
    parts: dict[str, str] = Field({}, description="digests of the parts of that: base, start, …")
    origin: str | None = Field(
        None, description="a digest of the weights that its start's pre-training began with"
    )
    machine: dict[str, Any] = Field({}, description="versions, commit, processor, accelerator")


def write_result(folder: Path, result: CellResult) -> Path:
    """Writes the file of a cell whole, or not at all; returns it."""
    file = result.cell.file(folder)
    file.parent.mkdir(parents=True, exist_ok=True)
    values = result.model_dump(mode="json")
    for test in values["tests"].values():
        for scores in test["per_query"].values():
            scores.update({query: round(value, _DIGITS) for query, value in scores.items()})
    with whole_file(file) as stream:
        json.dump(values, stream, separators=(",", ":"), ensure_ascii=False)
        stream.write("\n")
    return file


def read_result(file: Path) -> CellResult:
    """The result that a file holds; raises an InputError where it holds none."""
    try:
        values = read_mapping(file)
    except UnreadableError as error:
        raise InputError(
            f"the result of a cell is damaged: {error}",
            where=str(file),
            allowed="a file as `isthmus benchmark run` wrote it",
            remedy="remove the file: its cell is run again",
        ) from None
    result = CellResult.parse(values, where=str(file))
    if file.name != f"{result.cell.name}.json":
        raise InputError(
            f"the file is of the cell {result.cell.name!r}",
            where=str(file),
            allowed="files under the names that `isthmus benchmark run` gave them",
            remedy=f"rename it to {result.cell.name}.json",
        )
    return result


def read_results(folder: Path) -> list[CellResult]:
    """Every result in the folder of a benchmark, by name; failed cells included."""
    return [read_result(file) for file in sorted((folder / CELLS).glob("*.json"))]
