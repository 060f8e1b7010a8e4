"""Teachers: where they come from, and their scores of training examples."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from isthmus.config import Settings
from isthmus.finetuning.mining.candidates import NOTHING, CorpusIds, Rows, Scores, TrainingCorpus
from isthmus.finetuning.pairs import LabelledQueries, TaughtScores
from isthmus.registry import Registry

TEACHERS = Registry("isthmus.finetuning.teachers", "teacher")
INSTEAD = (
    "the folder of a re-ranker that is here, stage:NAME where an earlier stage trains one, or a "
    "file of scores (teacher: {name: scores, file: FILE})"
)
"""The alternatives to a teacher that cannot be loaded."""


@dataclass(frozen=True)
class Teacher:
    """Scores documents for queries; equal fingerprints give equal scores.

    `scores` takes queries and rows of the corpus [queries, any], and returns scores of that shape,
    NaN for NOTHING.
    """

    fingerprint: str
    scores: Callable[[LabelledQueries, Rows], Scores]
    any_query: bool = True  # False: only those of a file


class TeacherSource(ABC):
    """Where a teacher comes from: one class per file of `teachers/`."""

    Settings: ClassVar[type[Settings]]

    def __init__(self, settings: Any) -> None:
        self.settings = settings

    @abstractmethod
    def origin(self) -> str:
        """A digest of the model or file that the settings name; raises if it is missing."""

    def check(self, labelled: LabelledQueries, corpus: CorpusIds) -> None:  # noqa: B027 (most have no ids)
        """Raises if ids show that it cannot score these documents for these queries.

        Called for all stages before the first one trains; prints no notices, as `open` does.
        """

    @abstractmethod
    def open(self, corpus: TrainingCorpus) -> Teacher:
        """The teacher of this corpus, ready to score."""


def teacher_source(chosen: Mapping[str, Any] | None) -> TeacherSource | None:
    """The source that settings name; None where they name none."""
    if chosen is None:
        return None
    values = dict(chosen)
    kind = TEACHERS.load(str(values.pop("name", None)), "teacher")
    source: TeacherSource = kind(kind.Settings.parse(values, "teacher", under="teacher"))
    return source


def taught_scores(teacher: Teacher, labelled: LabelledQueries, negatives: Rows) -> TaughtScores:
    """The teacher's scores of every positive and negative of these queries."""
    positives = teacher.scores(labelled, padded(labelled.positives))
    return TaughtScores(positives, teacher.scores(labelled, negatives))


def padded(rows: Sequence[Sequence[int] | Rows]) -> Rows:
    """Rows as a matrix, filled up with NOTHING."""
    matrix = np.full((len(rows), max(map(len, rows))), NOTHING, dtype=np.int32)
    for number, found in enumerate(rows):
        matrix[number, : len(found)] = found
    return matrix
