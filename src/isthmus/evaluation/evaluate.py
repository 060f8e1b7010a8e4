"""From run files and judgements to a report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from isthmus.collections import Judged, Problems, open_judged, read_run
from isthmus.config import Overrides
from isthmus.config.output import claimed, finish, writing
from isthmus.errors import InputError, MismatchError
from isthmus.evaluation.measures import parse_measure
from isthmus.evaluation.query_scores import ANSWER_MEASURES, QueryScores, check_measures
from isthmus.evaluation.report import Report, RunCounts, summarise
from isthmus.evaluation.settings import EvaluationSettings
from isthmus.progress import notice, track
from isthmus.records import Judgements, Ranking, Run, is_passage

_NAMED = 5  # queries without results


def evaluate(
    runs: Sequence[Run | str | Path] | Run | str | Path,
    qrels: Judgements | Judged | str | Path,
    *,
    split: str | None = None,
    measures: str | Sequence[str] | None = None,
    output: str | Path | None = None,
    settings: EvaluationSettings | Overrides = None,
    notes: Sequence[str] = (),
) -> Report:
    """The report of one or several runs over all judged queries.

    Judgements are a file, or those of a collection's `split`: `test`, or the only one. `Answer@k`
    needs a collection with answers, whose texts are read for it.
    Measures are a sequence, or one text of names as ir_measures spells them, "RR@10 nDCG@10".
    With `output`, that folder holds report.json, table.md, table.tex and per_query.tsv. `notes` are
    sentences for the caption.
    """
    if isinstance(measures, str):
        measures = measures.replace(",", " ").split()
    settings = EvaluationSettings.given(settings, {"measures": measures})
    sources = [runs] if isinstance(runs, Run | str | Path) else list(runs)
    problems = settings.account()
    judged = _judged(qrels, split, problems)
    settings = settings.model_copy(update={"measures": usual_measures(settings, judged)})
    scores = QueryScores(settings.measures, judged)
    counts: dict[str, RunCounts] = {}
    read: dict[str, dict[str, str]] = {}
    # One run at a time: the scores are small, the rankings need not be.
    for source in track(sources, "evaluating", total=len(sources), unit="run"):
        run = source if isinstance(source, Run) else read_run(source, problems)
        where = str(source) if isinstance(source, str | Path) else f"run {run.name!r}"
        if run.name in read:
            _refuse_namesake(run.name, f"{read[run.name]['source']} and {where}")
        read[run.name] = {"source": where, "fingerprint": _fingerprint(run.rankings)}
        _check_queries(run, judged.queries, where)
        run = _by_document(run, where) if settings.by == "document" else run
        kept = _without_self(run) if settings.drop_self else run
        counts[run.name] = _count(run, kept, judged)
        _warn_of_missing(kept, judged.queries)
        _warn(run.name, counts[run.name], settings)
        if judged.judgements and not counts[run.name].judged_documents:
            _warn_of_another_corpus(kept, judged.judgements)
        scores.add(kept)
    if not read:
        raise InputError(
            "there is no run to evaluate",
            "give at least one run file",
        )
    report = summarise(scores.by_run(), settings, counts, notes)
    if problems.counts:
        notice(problems.summary())
    if output is not None:
        data = {"runs": read, "judgements": _fingerprint(judged.judgements)}
        identity = {"settings": settings.model_dump(mode="json"), **data, **scores.identity()}
        with claimed(Path(output), "evaluate", identity):
            write_report(report, Path(output))
    return report


def _refuse_namesake(name: str, where: str) -> None:
    raise InputError(
        f"{where}: two runs are named {name!r}",
        "rename one (the last column of a run file), or give the run once",
    )


def usual_measures(settings: EvaluationSettings, judged: Judged) -> tuple[str, ...]:
    """The measures: those that are chosen, or of answers alone those that count them.

    Raises on measures that what is known of the queries does not suffice for.
    """
    if "measures" not in settings.model_fields_set and not judged.judgements:
        return ANSWER_MEASURES
    check_measures(settings.measures, judged)
    return settings.measures


def _judged(
    source: Judgements | Judged | str | Path, split: str | None, problems: Problems
) -> Judged:
    where = str(source) if isinstance(source, str | Path) else "judgements"
    if isinstance(source, str | Path):
        source = open_judged(source, split, problems)
    if not isinstance(source, Judged):
        source = Judged({query: documents for query, documents in source.items() if documents})
    if not source.queries:
        raise InputError(
            f"{where}: no query is judged",
            "check that this is the right file",
        )
    return source


def _check_queries(run: Run, judged: Mapping[str, object], where: str) -> None:
    if run.rankings.keys().isdisjoint(judged):
        raise MismatchError(
            f"run {run.name!r} answers none of the {len(judged):,} judged queries: "
            + (
                (
                    f"its ids look like {min(run.rankings)!r}, those of the judgements like "
                    f"{min(judged)!r}"
                )
                if run.rankings
                else "it is empty"
            ),
            "give the judgements of the collection and split that the run was made for",
        )


def _by_document(run: Run, where: str) -> Run:
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
        dropped_self=sum(
            len(ranking) - len(kept.rankings[query]) for query, ranking in run.rankings.items()
        ),
    )


def _warn(name: str, counts: RunCounts, settings: EvaluationSettings) -> None:
    """Notices about numbers that are computed but may mislead."""
    parsed = {one: parse_measure(one, answers=True) for one in settings.measures}
    deeper = [o for o, one in parsed.items() if one.params.get("cutoff", 0) > counts.depth]
    if deeper:
        have = "has a cutoff" if len(deeper) == 1 else "have cutoffs"
        depth = f"the run's {counts.depth} results per query"
        notice(f"{name}: {', '.join(deeper)} {have} deeper than {depth}")


def _warn_of_missing(run: Run, judged: Iterable[str]) -> None:
    missing = [query for query in judged if not run.rankings.get(query)]
    if missing:
        which = f"{', '.join(missing[:_NAMED])}{', …' if len(missing) > _NAMED else ''}"
        what = "judged query has" if len(missing) == 1 else "judged queries have"
        scores = "scores" if len(missing) == 1 else "score"
        notice(f"{run.name}: {len(missing):,} {what} no results and {scores} 0: {which}")


def _warn_of_another_corpus(run: Run, judged: Judgements) -> None:
    # A poor system can do this on its own, with few queries: its zeros are measured all the same.
    retrieved = {document for query in judged for document, _ in run.rankings.get(query, ())}
    known = min(document for documents in judged.values() for document in documents)
    such = f" (ids such as {min(retrieved)!r})" if retrieved else ""
    notice(
        f"{run.name}: NOT ONE retrieved document{such} is judged (ids such as {known!r}): is it a "
        "run over another corpus?"
    )


def _fingerprint(nested: Any) -> str:
    """A fingerprint of the content of rankings or judgements."""
    digest = xxhash.xxh3_128()
    for query in sorted(nested):
        entries = dict(nested[query])
        digest.update("\0".join([query, *entries]).encode())
        digest.update(np.fromiter(entries.values(), float, len(entries)).tobytes())
    return digest.hexdigest()


def write_report(report: Report, output: Path) -> None:
    """Writes report.json, table.md, table.tex, per_query.tsv, and examples.md if there are any."""
    table = report.table()
    files = {
        "report.json": report.to_json() + "\n",
        "table.md": table.markdown(),
        "table.tex": table.latex(),
        "per_query.tsv": report.per_query_tsv(),
    }
    if report.examples:
        shown = (example.markdown() for example in report.example_tables())
        files["examples.md"] = "\n".join(shown)
    with writing(output):
        for name, text in files.items():
            (output / name).write_text(text, encoding="utf-8")
        finish(output, report.means)
