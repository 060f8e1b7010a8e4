"""A file of scores as teacher, whatever computed them."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
from pydantic import Field

from isthmus.collections.files import fingerprint
from isthmus.config import Settings
from isthmus.errors import MismatchError
from isthmus.finetuning.mining.candidates import NOTHING, CorpusIds, Rows, TrainingCorpus
from isthmus.finetuning.mining.candidates import Scores as Matrix
from isthmus.finetuning.pairs import LabelledQueries
from isthmus.finetuning.score_files import read_scores
from isthmus.finetuning.score_table import ENTRY, ScoreTable, digests
from isthmus.finetuning.teachers._base import Teacher, TeacherSource, padded
from isthmus.progress import notice


class ScoresSettings(Settings):
    """The file, and the score of pairs that it does not have."""

    file: str = Field(
        description="query, document and score separated by tabs, a TREC run file, or jsonl"
    )
    missing: float | None = Field(
        None, description="the score of pairs that are not in the file; null: they are refused"
    )


class Scores(TeacherSource):
    """Looks scores up in a file."""

    Settings = ScoresSettings

    def origin(self) -> str:
        """A digest of the file."""
        return fingerprint([Path(self.settings.file)])

    def check(self, labelled: LabelledQueries, corpus: CorpusIds) -> None:
        """Raises on a file of other documents, or one without scores of positives."""
        table = _read(Path(self.settings.file), corpus, report=lambda _: None)
        self._scores(table, corpus, labelled, padded(labelled.positives))

    def open(self, corpus: TrainingCorpus) -> Teacher:
        """The scores of the file that are of this corpus."""
        settings: ScoresSettings = self.settings

        @cache  # read at the first use
        def table() -> ScoreTable:
            return _read(Path(settings.file), corpus.ids, report=notice)

        def scores(labelled: LabelledQueries, rows: Rows) -> Matrix:
            return self._scores(table(), corpus.ids, labelled, rows)

        return Teacher(f"scores {self.origin()} {settings.missing}", scores, any_query=False)

    def _scores(
        self, table: ScoreTable, corpus: CorpusIds, labelled: LabelledQueries, rows: Rows
    ) -> Matrix:
        settings: ScoresSettings = self.settings
        ids = [query.id for query in labelled.queries]
        found = table.look_up(digests(ids), rows)
        unknown = np.isnan(found) & (rows != NOTHING)
        if unknown.any() and settings.missing is None:
            number, column = np.argwhere(unknown)[0]
            document = next(id_ for id_, row in corpus.rows.items() if row == rows[number, column])
            raise MismatchError(
                f"{unknown.sum():,} of {(rows != NOTHING).sum():,} pairs have no score in "
                f"teacher.file {settings.file!r}, query {ids[number]!r} and document {document!r} "
                "first",
                "score these pairs too; take negatives from what was scored (negatives: {name: "
                "run, …}), and no more than every query has (lower num_negatives); or set one "
                "score for all others: --set teacher.missing=…",
            )
        found[unknown] = settings.missing
        return found


def _read(file: Path, corpus: CorpusIds, report: Callable[[str], None]) -> ScoreTable:
    problems = corpus.reading.account()
    queries, rows, scores = array("Q"), array("I"), array("f")
    known: dict[str, int] = {}
    elsewhere = 0
    for query_id, document_id, score in read_scores(file, problems):
        if query_id not in known:
            known[query_id] = int(digests([query_id])[0])
        row = corpus.rows.get(document_id)
        if row is None:
            elsewhere += 1
            continue
        queries.append(known[query_id])
        rows.append(row)
        scores.append(score)
    if elsewhere and not rows:
        raise MismatchError(
            f"teacher.file: none of the {elsewhere:,} documents scored in {str(file)!r} is in the "
            "corpus",
            "give the file that belongs to this collection",
        )
    if elsewhere:
        report(f"{file}: {elsewhere:,} scores are of documents that the corpus does not have")
    if message := problems.summary():
        report(message)
    entries = np.empty(len(rows), ENTRY)
    entries["query"], entries["row"], entries["score"] = queries, rows, scores
    return ScoreTable(entries)
