"""The collections that test a cell, and whether they know what its measures need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from isthmus.collections import Judged, open_collection
from isthmus.errors import SettingsError
from isthmus.evaluation.measures import parse_measure
from isthmus.evaluation.query_scores import check_measures, counts_answers


def check_names(measures: Sequence[str], depth: int) -> None:
    """Raises on what is no measure, is there twice under any name, or looks below the depth."""
    seen: dict[str, str] = {}
    for name in measures:
        parsed = parse_measure(name, answers=True)
        measure, cutoff = str(parsed), parsed.params.get("cutoff", 0)
        if cutoff > depth:
            raise SettingsError(
                f"measures: {name!r} looks at more than the {depth:,} documents that are found "
                "for a query",
                f"set depth={cutoff}, or choose a lower cutoff",
            )
        if measure in seen:
            raise SettingsError(
                f"measures: {name!r} is the same measure as {seen[measure]!r}",
                "leave one of them out",
            )
        seen[measure] = name


@dataclass(frozen=True)
class TestedOn:
    """A collection that a cell is tested on."""

    collection: str
    spec: str
    split: str
    fingerprint: str

    def check(self, measures: Sequence[str]) -> None:
        """Raises on measures that need answers, or judgements, where the split has none.

        Nothing is read where neither the measures nor the collection know of answers.
        """
        opened = open_collection(self.spec)
        if any(map(counts_answers, measures)) or opened.answers(self.split):
            check_measures(measures, Judged.of(opened, self.split))
