"""What is wrong with the user's data: refused at once, or skipped and counted, never silent."""

from __future__ import annotations

from collections import Counter
from typing import Literal

from pydantic import Field

from isthmus.config import Settings
from isthmus.errors import InputError, visible

LINE_LIMIT = 64 * 2**20
"""The bytes that a line, or a file of a folder of texts, may have by default."""

Action = Literal["refuse", "skip"] | None
"""What to do with bad input; None: files of a folder are skipped, everything else is refused."""

_KEPT_EXAMPLES = 5


class Problems:
    """The account of everything that could not be used as it was given."""

    def __init__(self, action: Action = None, line_limit: int = LINE_LIMIT) -> None:
        self.action = action
        self.line_limit = line_limit
        self._counts: Counter[str] = Counter()
        self._examples: dict[str, list[str]] = {}
        self._fixes: dict[str, str] = {}
        self._unread: set[str] = set()
        self._without_id = False
        self._readings: dict[str, Problems] = {}

    def report(
        self,
        kind: str,
        where: str,
        detail: str,
        fix: str,
        document: str | None = None,
        whole_file: bool = False,
    ) -> None:
        """Raises an InputError when problems are refused; counts this one when they are skipped.

        `document` is the id of the document that is not read, where that is known; `whole_file`
        says that the problem is a whole file of a folder, which is refused only when asked for.
        """
        if self.action == "refuse" or (self.action is None and not whole_file):
            raise InputError(
                f"{where}: {kind}: {detail}",
                f"{fix}, or skip and count such cases: --set problems=skip",
            )
        if document is None:
            self._without_id = True
        else:
            self._unread.add(document)
        self._counts[kind] += 1
        self._fixes.setdefault(kind, fix)
        examples = self._examples.setdefault(kind, [])
        if len(examples) < _KEPT_EXAMPLES:
            examples.append(visible(f"{where}: {detail}"))

    def report_length(self, where: str, file: str | None = None) -> None:
        """Reports a line, or a file of a folder of texts, that is longer than the limit."""
        self.report(
            "too long",
            where,
            f"more than {self.line_limit:,} bytes",
            "check that it is what it should be, or raise the limit: --set line_limit=BYTES",
            document=file,
            whole_file=file is not None,
        )

    def reading(self, source: str) -> Problems:
        """The account of one reading of a source, in place of that of an earlier reading.

        Documents are often read several times (tokenised, then indexed): each problem counts once.
        """
        self._readings[source] = Problems(self.action, self.line_limit)
        return self._readings[source]

    @property
    def counts(self) -> dict[str, int]:
        """How often each kind of problem was met."""
        return dict(sum((Counter(part.counts) for part in self._parts()), self._counts.copy()))

    @property
    def examples(self) -> dict[str, list[str]]:
        """The first few places of each kind of problem, with what was found there."""
        merged = {kind: list(found) for kind, found in self._examples.items()}
        for part in self._parts():
            for kind, found in part.examples.items():
                merged[kind] = (merged.get(kind, []) + found)[:_KEPT_EXAMPLES]
        return merged

    @property
    def fixes(self) -> dict[str, str]:
        """What to do about the first problem of each kind."""
        merged = dict(self._fixes)
        for part in self._parts():
            merged = part.fixes | merged
        return merged

    @property
    def unread(self) -> set[str]:
        """The ids of documents that were skipped, where they are known."""
        return self._unread.union(*(part.unread for part in self._parts()))

    @property
    def without_id(self) -> bool:
        """Whether anything was skipped that may have been any document: a broken line, say."""
        return self._without_id or any(part.without_id for part in self._parts())

    def summary(self) -> str:
        """A line per kind of problem with its count and first places; empty when there is none."""
        lines = []
        for kind, count in sorted(self.counts.items()):
            places = self.examples[kind]
            more = f"; and {count - len(places):,} more" if count > len(places) else ""
            lines.append(f"skipped {count:,} x {kind}: {'; '.join(places)}{more}")
        return "\n".join(lines)

    def _parts(self) -> list[Problems]:
        return list(self._readings.values())


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
