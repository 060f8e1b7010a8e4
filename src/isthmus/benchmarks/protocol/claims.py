"""What a protocol sets out to show: claims about its runs, and the numbers of a paper."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Self

from pydantic import Field, model_validator

from isthmus.config import Settings


class Selection(Settings):
    """Runs of which a claim averages a measure: every combination of these names."""

    methods: list[str] = Field(min_length=1, description="Methods, averaged")
    retrievers: list[str] = Field([], description="Types of retriever (default: all)")
    tasks: list[str] = Field([], description="Tasks (default: all that are fine-tuned)")
    collections: list[str] = Field(
        [], description="Test collections (default: the one that the task is trained on)"
    )


class Claim(Settings):
    """A statement of a paper that is supported if one selection's value is above another's."""

    statement: str = Field(description="What is claimed, in one sentence")
    paper: str = Field("", description="Where it is claimed")
    higher: Selection = Field(description="The side that the claim says is higher")
    lower: Selection = Field(description="The other side")
    measure: str | None = Field(None, description="Measure (default: the protocol's first)")

    def names(self) -> Iterator[tuple[str, str]]:
        """The names that the claim uses, each with the key of the protocol that lists it."""
        for side in (self.higher, self.lower):
            for key in Selection.model_fields:
                yield from ((key, name) for name in getattr(side, key))


class ExpectedValue(NamedTuple):
    """One number of a paper; `method` is one of the protocol, or the paper's own label."""

    method: str
    collection: str
    measure: str
    value: float


class ExpectedTable(Settings):
    """Numbers that a paper reports, in the layout of its table."""

    paper: str = Field(description="Authors, title or venue")
    table: str = Field(description="Number of the table or figure")
    retriever: str = Field(description="Retriever of the protocol that it is about")
    task: str = Field(description="Task of the protocol that it is about")
    columns: list[str] = Field(min_length=1, description="COLLECTION MEASURE, for each column")
    rows: dict[str, list[float | None]] = Field(
        description="Numbers by method of the protocol, or by the paper's label for what it lacks"
    )
    note: str = Field("", description="Differences from the protocol other than the scale")

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
        for method, values in self.rows.items():
            for column, value in zip(self.columns, values, strict=True):
                if value is not None:
                    collection, measure = column.split(" ")
                    yield ExpectedValue(method, collection, measure, value)
