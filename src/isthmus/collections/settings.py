"""The settings of every verb that reads users' data."""

from __future__ import annotations

from pydantic import Field

from isthmus.collections.problems import LINE_LIMIT, Action, Problems
from isthmus.config import Settings


class ReadingSettings(Settings):
    """What is done with bad input, and how much of it is read at once."""

    problems: Action = Field(
        None,
        description="refuse or skip bad input; null: files of a folder that cannot be read are "
        "skipped and named, everything else is refused",
    )
    line_limit: int = Field(
        LINE_LIMIT,
        ge=1,
        le=2**40,
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
        return f"{self.problems or 'skip files'} {self.line_limit}"
