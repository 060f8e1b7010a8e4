"""Checks that a teacher ranks documents better than the retriever that found them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from isthmus.finetuning.development import DevelopmentSet
from isthmus.finetuning.mining.candidates import NOTHING, Rows, Scores, TrainingCorpus, candidates
from isthmus.finetuning.negatives._base import Source
from isthmus.finetuning.pairs import LabelledQueries
from isthmus.finetuning.teachers._base import Teacher
from isthmus.progress import notice
from isthmus.records import Query, Ranking

_DEPTH = 20
_QUERIES = 100


def check_teacher(
    teacher: Teacher,
    sources: Sequence[Source],
    corpus: TrainingCorpus,
    chosen: DevelopmentSet,
    measure: str,
) -> dict[str, Any] | None:
    """The measure of a retriever's first results for development queries, and re-ranked.

    Reports both, and what to do if the teacher is no better. The retriever is the first source of
    negatives that can rank any query; None where there is none, or where the teacher cannot.
    """
    if not teacher.any_query:
        return None
    rankers = (source.open(corpus) for source in sources)
    ranker = next((ranker for ranker in rankers if ranker.any_query), None)
    if ranker is None:
        return None
    queries = chosen.queries[:_QUERIES]
    found = candidates(ranker, corpus, queries, _DEPTH)
    labelled = LabelledQueries(queries, [[] for _ in queries])
    taught = teacher.scores(labelled, found.rows)
    retriever, reranked = (
        chosen.mean(measure, _rankings(queries, found.rows, scores, corpus))
        for scores in (found.scores, taught)
    )
    message = (
        f"of {len(queries):,} development queries, the first {_DEPTH} as the teacher orders them: "
        f"{measure} {reranked:.3f}; as they were found: {retriever:.3f}"
    )
    if reranked <= retriever:
        message += (
            ". A TEACHER THAT IS NO BETTER has little to teach: train it longer, at a higher rate, "
            "with more negatives, or from a stronger checkpoint (in a pipeline: --set "
            "stages.reranker.model=NAME)"
        )
    notice(message)
    return {"measure": measure, "teacher": reranked, "retriever": retriever}


def _rankings(
    queries: Sequence[Query], rows: Rows, scores: Scores, corpus: TrainingCorpus
) -> Iterator[Ranking]:
    for query, places, values in zip(queries, rows, scores, strict=True):
        listed = zip(places.tolist(), values.tolist(), strict=True)
        known = {corpus.tokenised[row].id: score for row, score in listed if row != NOTHING}
        yield Ranking.sorted(query.id, known)
