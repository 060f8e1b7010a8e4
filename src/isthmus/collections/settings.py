"""The settings of every verb that reads users' data."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from isthmus.collections.problems import LINE_LIMIT, Problems
from isthmus.config import Settings


class ReadingSettings(Settings):
    """What is done with bad input, and how much of it is read at once."""

    problems: Literal["refuse", "skip"] = Field("refuse", description="what to do with bad input")
    line_limit: int = Field(
        LINE_LIMIT,
        ge=1,
        le=2**40,
        # Outputs described before there was a limit are still those of the same settings.
        exclude_if=lambda limit: limit == LINE_LIMIT,
        description="bytes of a line, or of a file of a folder of texts; longer ones are bad input",
    )

    def account(self) -> Problems:
        """A new account of what is wrong with the data."""
        return Problems(self.problems, self.line_limit)

    @property
    def reading(self) -> ReadingSettings:
        """These settings alone, without those of the verb."""
        return ReadingSettings(problems=self.problems, line_limit=self.line_limit)

    @property
    def kept(self) -> str:
        """The settings on which the documents that are read depend, for the names of caches."""
        if self.problems == "refuse" or self.line_limit == LINE_LIMIT:
            return self.problems
        return f"{self.problems} {self.line_limit}"
