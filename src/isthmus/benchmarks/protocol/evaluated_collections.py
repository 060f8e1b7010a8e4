"""The collections that test a cell, and whether they know what its measures need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from isthmus.collections import Judged, open_collection
from isthmus.evaluation.query_scores import check_measures, counts_answers


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
