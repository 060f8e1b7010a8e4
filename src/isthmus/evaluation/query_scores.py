"""The value of every query, by run and measure: of judged documents, and of answers in texts."""

from __future__ import annotations

from collections.abc import Sequence

from isthmus.collections import Judged
from isthmus.errors import SettingsError
from isthmus.evaluation.answers import answer_accuracy, answer_texts
from isthmus.evaluation.measures import AnswerAccuracy, parse_measure, per_query
from isthmus.evaluation.settings import USUAL_MEASURES
from isthmus.records import Run

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


def query_scores(
    runs: Sequence[Run], measures: Sequence[str], judged: Judged
) -> dict[str, dict[str, dict[str, float]]]:
    """All scores, by run, measure and query; `Answer@k` of a query without answers is 0.

    Answers are looked for in the texts of all runs at once: the corpus is read once.
    """
    parsed = [parse_measure(name, answers=True) for name in measures]
    cutoffs = {str(one): int(one["cutoff"]) for one in parsed if isinstance(one, AnswerAccuracy)}
    others = [str(one) for one in parsed if str(one) not in cutoffs]
    found = {run.name: per_query(run, judged.judgements, others) if others else {} for run in runs}
    if cutoffs:
        texts = answer_texts(runs, judged, max(cutoffs.values()))
        strings = {query: judged.answers.get(query, ()) for query in judged.queries}
        for run in runs:
            found[run.name] |= answer_accuracy(run, strings, texts, [*cutoffs.values()])
    return {run: {str(name): of[str(name)] for name in parsed} for run, of in found.items()}
