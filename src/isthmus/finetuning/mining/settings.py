"""Which part of a ranking negatives are drawn from."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from isthmus.config import Settings


class MiningSettings(Settings):
    """Which part of a ranking negatives are drawn from."""

    num_negatives: int = Field(15, ge=1, description="per query and epoch")
    range_min: int = Field(0, ge=0, description="ranks skipped at the top")
    range_max: int = Field(1000, ge=1, description="the deepest rank considered")
    absolute_margin: float | None = Field(
        None, ge=0, description="how far below the positive's score a negative's must lie"
    )
    relative_margin: float | None = Field(
        None, ge=0, description="as absolute_margin, but a share of the positive's score"
    )
    margin_by: Literal["source", "teacher"] = Field(
        "source", description="whose scores the margins compare"
    )

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.range_min >= self.range_max:
            raise ValueError("range_min must be below range_max")
        if self.margin_by == "teacher" and not self.has_margin:
            raise ValueError("margin_by: teacher needs absolute_margin or relative_margin")
        return self

    @property
    def has_margin(self) -> bool:
        """Whether scores decide which candidates may be negatives."""
        return self.absolute_margin is not None or self.relative_margin is not None
