"""What is wrong with the user's data: refused at once, or skipped and counted, never silent."""

from __future__ import annotations

from collections import Counter
from typing import Literal

from isthmus.errors import InputError, visible

LINE_LIMIT = 64 * 2**20
"""The bytes that a line, or a file of a folder of texts, may have by default."""

_KEPT_EXAMPLES = 5
_ALLOWED = {
    "broken line": "lines of the file's format",
    "duplicate id": "every id once",
    "duplicate judgement": "one relevance for a query and a document",
    "empty text": "texts with at least one visible character",
    "too long": "lines, and files of a folder of texts, within line_limit",
    "unknown document": "ids of documents in the corpus",
    "unknown query": "ids of queries in the collection",
    "wrong encoding": "UTF-8",
}


class Problems:
    """The account of everything that could not be used as it was given."""

    def __init__(
        self, action: Literal["refuse", "skip"] = "refuse", line_limit: int = LINE_LIMIT
    ) -> None:
        self.action = action
        self.line_limit = line_limit
        self._counts: Counter[str] = Counter()
        self._examples: dict[str, list[str]] = {}
        self._remedies: dict[str, str] = {}
        self._readings: dict[str, Problems] = {}

    def report(self, kind: str, where: str, detail: str, remedy: str) -> None:
        """Raises an InputError when problems are refused; counts this one when they are skipped."""
        if self.action == "refuse":
            raise InputError(
                f"{kind}: {detail}",
                where=where,
                allowed=_ALLOWED.get(kind, "data without this problem"),
                remedy=f"{remedy}; or leave such cases out and count them: --set problems=skip",
            )
        self._counts[kind] += 1
        self._remedies.setdefault(kind, remedy)
        examples = self._examples.setdefault(kind, [])
        if len(examples) < _KEPT_EXAMPLES:
            examples.append(visible(f"{where}: {detail}"))

    def report_length(self, where: str) -> None:
        """Reports a line, or a file of a folder of texts, that is longer than the limit."""
        self.report(
            "too long",
            where,
            f"more than {self.line_limit:,} bytes",
            "check that it is what it should be, or raise the limit: --set line_limit=BYTES",
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
    def remedies(self) -> dict[str, str]:
        """What mends the first problem of each kind."""
        merged = dict(self._remedies)
        for part in self._parts():
            merged = part.remedies | merged
        return merged

    def summary(self) -> str:
        """One line per kind of problem with its count and first place; empty when there is none."""
        examples = self.examples
        return "\n".join(
            f"skipped {count:,} x {kind}, first at {examples[kind][0]}"
            for kind, count in sorted(self.counts.items())
        )

    def _parts(self) -> list[Problems]:
        return list(self._readings.values())
