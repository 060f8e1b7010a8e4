"""From runs and judgements to a report, with notices of what may mislead."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence

from isthmus.collections import Judged
from isthmus.config import Overrides
from isthmus.errors import InputError, MismatchError
from isthmus.evaluation.measures import parse_measure
from isthmus.evaluation.query_scores import known_measures, query_scores
from isthmus.evaluation.report import Report, RunCounts, summarise
from isthmus.evaluation.settings import EvaluationSettings
from isthmus.progress import notice
from isthmus.records import Judgements, Ranking, Run, is_passage

_NAMED = 5  # queries without results


def compare_runs(
    runs: Sequence[Run],
    judged: Judged | Judgements,
    settings: EvaluationSettings | Overrides = None,
    notes: Sequence[str] = (),
    pairs: Sequence[tuple[str, str]] | None = None,
    searched: Container[str] = (),
) -> Report:
    """The report of one or several runs over all judged queries.

    Args:
        runs: Rankings of each system, whose names differ.
        judged: Judgements by query and document, with answers where `Answer@k` counts them.
        settings: Measures, test, correction and intervals.
        notes: Sentences for the caption.
        pairs: Names of the systems that are compared by tests (default: all pairs).
        searched: Names of the runs that have all results which their system finds.

    """
    settings = EvaluationSettings.given(settings)
    if not isinstance(judged, Judged):
        judged = Judged({query: documents for query, documents in judged.items() if documents})
    if not judged.queries:
        raise InputError("no query is judged", "check that this is the right file or split")
    if not runs:
        raise InputError("there is no run to evaluate", "give at least one system or run file")
    settings = settings.model_copy(update={"measures": known_measures(settings.measures, judged)})
    measured: list[Run] = []
    counts: dict[str, RunCounts] = {}
    for run in runs:
        if run.name in counts:
            raise InputError(f"two runs are named {run.name!r}", "rename one of them")
        _check_queries(run, judged.queries)
        run = _by_document(run) if settings.by == "document" else run
        kept = _without_self(run) if settings.drop_self else run
        counts[run.name] = _count(run, kept, judged)
        _warn(kept, counts[run.name], judged, settings, run.name in searched)
        measured.append(kept)
    scores = query_scores(measured, settings.measures, judged)
    return summarise(scores, settings, counts, notes, pairs)


def _check_queries(run: Run, judged: Mapping[str, object]) -> None:
    if run.rankings.keys().isdisjoint(judged):
        ids = "it is empty"
        if run.rankings:
            ids = (
                f"its ids look like {min(run.rankings)!r}, those of the judgements like "
                f"{min(judged)!r}"
            )
        raise MismatchError(
            f"run {run.name!r} answers none of the {len(judged):,} judged queries: {ids}",
            "give the judgements of the collection and split that the run was made for",
        )


def _by_document(run: Run) -> Run:
    for query, ranking in run.rankings.items():
        for found in ranking.document_ids:
            if not is_passage(found):
                raise MismatchError(
                    f"by = document, but {found!r}, a result of query {query!r} in run "
                    f"{run.name!r}, is no passage (DOCUMENT#NUMBER)",
                    "leave by=document out: the ids are of documents already",
                )
    return Run(run.name, {query: one.by_document() for query, one in run.rankings.items()})


def _without_self(run: Run) -> Run:
    rankings = {}
    for query, ranking in run.rankings.items():
        kept = [(document, score) for document, score in ranking if document != query]
        rankings[query] = Ranking(query, tuple(d for d, _ in kept), tuple(s for _, s in kept))
    return Run(run.name, rankings)


def _count(run: Run, kept: Run, known: Judged) -> RunCounts:
    judged = known.queries
    answered = {query: kept.rankings[query] for query in judged if kept.rankings.get(query)}
    before, after = (sum(map(len, one.rankings.values())) for one in (run, kept))
    return RunCounts(
        answered=len(answered),
        missing=len(judged) - len(answered),
        unjudged=sum(query not in judged for query in run.rankings),
        judged_documents=sum(
            document in known.judgements.get(query, ())
            for query, ranking in answered.items()
            for document in ranking.document_ids
        ),
        depth=max(map(len, answered.values()), default=0),
        dropped_self=before - after,
    )


def _warn(
    run: Run, counts: RunCounts, judged: Judged, settings: EvaluationSettings, whole: bool
) -> None:
    """Notices about numbers that are computed but may mislead."""
    if counts.missing:
        missing = [query for query in judged.queries if not run.rankings.get(query)]
        which = f"{', '.join(missing[:_NAMED])}{', …' if len(missing) > _NAMED else ''}"
        what = "judged query has" if len(missing) == 1 else "judged queries have"
        scores = "scores" if len(missing) == 1 else "score"
        notice(f"{run.name}: {len(missing):,} {what} no results and {scores} 0: {which}")
    parsed = {one: parse_measure(one, answers=True) for one in settings.measures}
    deeper = [o for o, one in parsed.items() if one.params.get("cutoff", 0) > counts.depth]
    if deeper and not whole:
        have = "has a cutoff" if len(deeper) == 1 else "have cutoffs"
        depth = f"the run's {counts.depth} results per query"
        notice(f"{run.name}: {', '.join(deeper)} {have} deeper than {depth}")
    if judged.judgements and not counts.judged_documents:
        _warn_of_another_corpus(run, judged.judgements)


def _warn_of_another_corpus(run: Run, judged: Judgements) -> None:
    # A poor system can do this on its own, with few queries: its zeros are measured all the same.
    retrieved: Iterable[str] = {
        document for query in judged for document, _ in run.rankings.get(query, ())
    }
    known = min(document for documents in judged.values() for document in documents)
    such = f" (ids such as {min(retrieved)!r})" if retrieved else ""
    notice(
        f"{run.name}: NOT ONE retrieved document{such} is judged (ids such as {known!r}): is it a "
        "run over another corpus?"
    )
