"""What a protocol sets out to show: claims about its cells, and the numbers of a paper."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

from pydantic import Field, model_validator

from isthmus.config import Settings


class Selection(Settings):
    """Cells of the table, of which a claim averages a measure: every combination of these names.

    An empty list stands for all.
    """

    starts: list[str] = Field(min_length=1, description="which starting points, averaged")
    kinds: list[str] = Field([], description="encoder kinds; none: all")
    tasks: list[str] = Field([], description="tasks; none: all that are fine-tuned")
    collections: list[str] = Field(
        [], description="test collections; none: the one that the task is trained on"
    )


class Claim(Settings):
    """A statement of a paper that holds if one selection's value is above another's."""

    statement: str = Field(description="what is claimed, in one sentence")
    paper: str = Field("", description="where it is claimed")
    higher: Selection = Field(description="the side that the claim says is higher")
    lower: Selection = Field(description="the other side")
    measure: str | None = Field(None, description="null: the first of the protocol's measures")

    def names(self) -> Iterator[tuple[str, str]]:
        """The names that the claim uses, each with what it is a name of."""
        for side in (self.higher, self.lower):
            yield from (("starts", name) for name in side.starts)
            yield from (("kinds", name) for name in side.kinds)
            yield from (("tasks", name) for name in side.tasks)
            yield from (("collections", name) for name in side.collections)


@dataclass(frozen=True, slots=True)
class ExpectedValue:
    """One number of a paper; `start` is a start of the protocol, or the paper's own label."""

    paper: str
    table: str
    start: str
    kind: str
    task: str
    collection: str
    measure: str
    value: float


class ExpectedTable(Settings):
    """Numbers that a paper reports, in the layout of its table."""

    paper: str = Field(description="authors, title or venue")
    table: str = Field(description="the number of the table or figure")
    kind: str = Field(description="the encoder kind of the protocol that it is about")
    task: str = Field(description="the task of the protocol that it is about")
    columns: list[str] = Field(min_length=1, description="COLLECTION MEASURE, for each column")
    rows: dict[str, list[float | None]] = Field(
        description="by start of the protocol, or by the paper's label for what it lacks"
    )
    note: str = Field("", description="what differs from the protocol beside the scale")

    @model_validator(mode="after")
    def _rectangular(self) -> Self:
        for column in self.columns:
            if len(column.split(" ")) != 2:
                raise ValueError(f"the column {column!r} is not COLLECTION MEASURE")
        for name, values in self.rows.items():
            if len(values) != len(self.columns):
                raise ValueError(
                    f"the row {name!r} has {len(values)} values for {len(self.columns)} columns"
                )
        return self

    def values(self) -> Iterator[ExpectedValue]:
        """Every number of the table, row by row."""
        for start, values in self.rows.items():
            for column, value in zip(self.columns, values, strict=True):
                if value is not None:
                    collection, measure = column.split(" ")
                    yield ExpectedValue(
                        self.paper, self.table, start, self.kind, self.task,
                        collection, measure, value,
                    )  # fmt: skip
