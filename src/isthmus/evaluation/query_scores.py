"""The value of every query, by run and measure: of judged documents, and of answers in texts."""

from __future__ import annotations

from collections.abc import Sequence

from isthmus.collections import Judged
from isthmus.errors import SettingsError
from isthmus.evaluation.answers import answer_accuracy, answer_texts
from isthmus.evaluation.measures import AnswerAccuracy, best_first, parse_measure, per_query
from isthmus.evaluation.settings import USUAL_MEASURES
from isthmus.records import Ranking, Run

ANSWER_MEASURES = ("Answer@5", "Answer@20", "Answer@100")


def counts_answers(measure: str) -> bool:
    """Whether a measure is `Answer@k`."""
    return isinstance(parse_measure(measure, answers=True), AnswerAccuracy)


def known_measures(measures: tuple[str, ...], judged: Judged) -> tuple[str, ...]:
    """The measures; of queries with answers alone `Answer@k`, where the usual ones were chosen.

    Raises on measures that what is known of the queries does not suffice for.
    """
    if not judged.judgements and measures == USUAL_MEASURES:
        return ANSWER_MEASURES
    check_measures(measures, judged)
    return measures


def check_measures(measures: Sequence[str], judged: Judged) -> None:
    """Raises on measures that what is known of the queries does not suffice for."""
    for name in measures:
        of_answers = counts_answers(name)
        if not (judged.answers if of_answers else judged.judgements):
            lacking, known = ("answers", "judgements") if of_answers else ("judgements", "answers")
            raise SettingsError(
                f"measures: {name!r} needs {lacking}, and these queries have {known} only",
                f"measure {', '.join(ANSWER_MEASURES)}"
                if judged.answers
                else (
                    "choose another measure, or name a collection with answers instead of a "
                    "file of judgements (dpr:FOLDER, irds:dpr-w100/…)"
                ),
            )


class QueryScores:
    """Takes one run after the other; of each it keeps the scores, not the rankings.

    Answers are looked for at the end, in the texts of all runs at once: the corpus is read once,
    and until then the first documents of each run are kept.
    """

    def __init__(self, measures: Sequence[str], judged: Judged) -> None:
        parsed = [parse_measure(name, answers=True) for name in measures]
        self._judged = judged
        self._measures = tuple(map(str, parsed))
        self._cutoffs = {
            str(one): int(one["cutoff"]) for one in parsed if isinstance(one, AnswerAccuracy)
        }
        self._others = [name for name in self._measures if name not in self._cutoffs]
        self._scores: dict[str, dict[str, dict[str, float]]] = {}
        self._first: list[Run] = []

    def add(self, run: Run) -> None:
        """Takes a run of a name of its own."""
        found = per_query(run, self._judged.judgements, self._others) if self._others else {}
        self._scores[run.name] = found
        if self._cutoffs:
            self._first.append(_cut(run, self._judged, max(self._cutoffs.values())))

    def by_run(self) -> dict[str, dict[str, dict[str, float]]]:
        """All scores, by run, measure and query; `Answer@k` of a query without answers is 0."""
        cutoffs = list(self._cutoffs.values())
        if self._first:
            texts = answer_texts(self._first, self._judged, max(cutoffs))
            strings = {query: self._judged.answers.get(query, ()) for query in self._judged.queries}
            for run in self._first:
                self._scores[run.name] |= answer_accuracy(run, strings, texts, cutoffs)
        return {
            run: {name: found[name] for name in self._measures}
            for run, found in self._scores.items()
        }


def _cut(run: Run, judged: Judged, depth: int) -> Run:
    """A run's first documents for the queries that count, scored by their ranks."""
    rankings = {}
    for query in judged.queries:
        if query in run.rankings:
            first = best_first(run.rankings[query], run.name)[:depth]
            ranks = range(0, -len(first), -1)
            rankings[query] = Ranking(query, tuple(first), tuple(map(float, ranks)))
    return Run(run.name, rankings)
