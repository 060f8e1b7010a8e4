"""Whether a teacher has something to teach: it should order documents better than their finder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from isthmus.evaluation.measures import per_query
from isthmus.finetune.development import DevelopmentSet
from isthmus.finetune.mining.candidates import NOTHING, Scores, Source, TrainingCorpus, candidates
from isthmus.finetune.pairs import LabelledQueries
from isthmus.finetune.teaching import Teacher
from isthmus.progress import notice
from isthmus.records import Ranking, Run

_DEPTH = 20
_QUERIES = 100


def check_teacher(
    teacher: Teacher,
    sources: Sequence[Source],
    corpus: TrainingCorpus,
    chosen: DevelopmentSet,
    measure: str,
) -> dict[str, Any] | None:
    """The measure of a retriever's best for development queries, and as the teacher orders them.

    Says so, and what to do where the teacher is no better. The retriever is the first source of
    negatives that knows more than the training queries; None where there is none, or where the
    teacher knows no others either.
    """
    if not teacher.any_query:
        return None
    rankers = (source.open(corpus) for source in sources)
    ranker = next((ranker for ranker in rankers if ranker.any_query), None)
    if ranker is None:
        return None
    queries = chosen.queries[:_QUERIES]
    found = candidates(ranker, corpus, queries, _DEPTH)
    asked = LabelledQueries(queries, [[] for _ in queries])
    taught = teacher.scores(asked, found.rows)
    retriever, reranked = (
        _mean(scores, found.rows, corpus, chosen, measure) for scores in (found.scores, taught)
    )
    said = (
        f"of {len(queries):,} development queries, the first {_DEPTH} as the teacher orders them: "
        f"{measure} {reranked:.3f}; as they were found: {retriever:.3f}"
    )
    if reranked <= retriever:
        said += (
            ". A TEACHER THAT IS NO BETTER has little to teach: train it longer, at a higher rate, "
            "with more negatives, or from a stronger checkpoint (in a pipeline: --set "
            "stages.reranker.model=NAME)"
        )
    notice(said)
    return {"measure": measure, "teacher": reranked, "retriever": retriever}


def _mean(
    scores: Scores, rows: Any, corpus: TrainingCorpus, chosen: DevelopmentSet, measure: str
) -> float:
    rankings = {}
    for query, values, places in zip(chosen.queries, scores, rows, strict=False):
        present = np.flatnonzero(places != NOTHING)
        order = present[np.argsort(-values[present], kind="stable")]
        ids = tuple(corpus.tokenised[int(places[place])].id for place in order)
        rankings[query.id] = Ranking(query.id, ids, tuple(values[order].tolist()))
    judged = {query: chosen.judgements[query] for query in rankings}
    found = per_query(Run("candidates", rankings), judged, [measure])
    return float(np.mean(list(next(iter(found.values())).values())))
