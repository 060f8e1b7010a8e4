"""Cells of a benchmark and their results: one small file each, which may travel between machines.

A result holds the value of every test query, so that all statistics can be computed from a folder
of such files alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from isthmus.config import Settings
from isthmus.config.output import whole_file
from isthmus.config.sealed_json import UnreadableError, read_mapping
from isthmus.errors import InputError, SettingsError

CELLS = "cells"
_DIGITS = 6
_LARGEST = 1e18  # sums of larger numbers leave what floats hold
Number = Annotated[float, Field(gt=-_LARGEST, lt=_LARGEST)]
Scores = Annotated[dict[str, Number], Field(min_length=1)]
Spent = Annotated[Number, Field(ge=0)] | None


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
    per_query: dict[str, Scores] = Field(min_length=1, description="by measure and query id")
    first: dict[str, str] = Field({}, description="the best document of each query")


class Cost(Settings):
    """What a cell took; of pre-training, what its start took, shared with other cells."""

    pretraining_seconds: Spent = None
    pretraining_tokens: Spent = None
    finetuning_seconds: Spent = None
    index_seconds: Spent = None
    index_bytes: Spent = None
    query_seconds: Spent = Field(None, description="of one query, alone, in-domain")
    parameters: Spent = None


class CellResult(Settings):
    """A cell that was run: its tests, or the reason for which there are none."""

    cell: Cell
    status: Literal["done", "failed"]
    reason: str | None = None
    tests: dict[str, Tested] = Field({}, description="by test collection")
    cost: Cost = Cost()
    probes: dict[str, Number] = Field({}, description="of the pre-trained model, by probe")
    probes_before: dict[str, Number] = Field(
        {}, description="of the model that the pre-training went on from, on the same documents"
    )
    settings: str = Field(description="a digest of everything that the result depends on")
    parts: dict[str, str] = Field({}, description="digests of the parts of that: base, start, …")
    origin: str | None = Field(
        None, description="a digest of the weights that its start's pre-training began with"
    )
    machine: dict[str, Any] = Field({}, description="versions, commit, processor, accelerator")

    @model_validator(mode="after")
    def _has_scores(self) -> Self:
        if self.status == "done" and not self.tests:
            raise ValueError("a finished cell has no scores at all")
        return self

    def lacking(self, collections: Iterable[str], measures: Sequence[str]) -> list[str]:
        """Those of these test collections that lack scores by one of the measures."""
        empty = Tested.model_construct(measures={}, per_query={})
        tests = {name: self.tests.get(name, empty) for name in collections}
        return [
            name
            for name, test in tests.items()
            if not test.measures.keys() & test.per_query.keys() >= {*measures}
        ]


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
        result = CellResult.parse(read_mapping(file), where="")
    except (UnreadableError, SettingsError) as error:
        reason = error.what if isinstance(error, SettingsError) else error
        raise damaged(file, str(reason)) from None
    if file.name != f"{result.cell.name}.json":
        raise InputError(
            f"{file} holds the result of {result.cell.name!r}",
            f"rename it to {result.cell.name}.json",
        )
    return result


def damaged(file: Path, reason: str) -> InputError:
    """The refusal of a file that should hold the result of a cell."""
    return InputError(
        f"{file} is damaged: {reason}",
        "remove the file: it is made again",
    )
