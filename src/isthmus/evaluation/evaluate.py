"""From run files and judgements to a report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from isthmus.collections import Problems, read_judgements, read_run
from isthmus.config import Overrides
from isthmus.config.output import claimed, finish, writing
from isthmus.errors import InputError, MismatchError
from isthmus.evaluation.measures import parse_measure, per_query
from isthmus.evaluation.report import Report, RunCounts, summarise
from isthmus.evaluation.settings import EvaluationSettings
from isthmus.progress import notice, track
from isthmus.records import Judgements, Ranking, Run, is_passage


def evaluate(
    runs: Sequence[Run | str | Path] | Run | str | Path,
    qrels: Judgements | str | Path,
    *,
    measures: str | Sequence[str] | None = None,
    output: str | Path | None = None,
    settings: EvaluationSettings | Overrides = None,
) -> Report:
    """The report of one or several runs over all judged queries.

    Measures are a sequence, or one text of names as ir_measures spells them, "RR@10 nDCG@10".
    With `output`, that folder holds report.json, table.md, table.tex and per_query.tsv.
    """
    if isinstance(measures, str):
        measures = measures.replace(",", " ").split()
    settings = EvaluationSettings.given(settings, {"measures": measures})
    sources = [runs] if isinstance(runs, Run | str | Path) else list(runs)
    problems = settings.account()
    judged = _read_judgements(qrels, problems)
    scores: dict[str, dict[str, dict[str, float]]] = {}
    counts: dict[str, RunCounts] = {}
    read: dict[str, dict[str, str]] = {}
    # One run at a time: the scores are small, the rankings need not be.
    for source in track(sources, "evaluating", total=len(sources), unit="run"):
        run = source if isinstance(source, Run) else read_run(Path(source), problems)
        where = str(source) if isinstance(source, str | Path) else f"run {run.name!r}"
        if run.name in scores:
            raise InputError(
                f"two runs are named {run.name!r}",
                where=f"{read[run.name]['source']} and {where}",
                allowed="a name of its own for each run: tables and tests go by it",
                remedy="change the name (the last column of a run file), or give the run once",
            )
        read[run.name] = {"source": where, "fingerprint": _fingerprint(run.rankings)}
        _check_queries(run, judged, where)
        run = _by_document(run, where) if settings.by == "document" else run
        kept = _without_self(run) if settings.drop_self else run
        counts[run.name] = _count(run, kept, judged)
        _warn(run.name, counts[run.name], settings)
        if not counts[run.name].judged_documents:
            _warn_of_another_corpus(kept, judged)
        scores[run.name] = per_query(kept, judged, settings.measures)
    if problems.counts:
        notice(problems.summary())
    if not scores:
        raise InputError(
            "there is no run to evaluate",
            where="runs",
            allowed="one or more run files",
            remedy="give at least one",
        )
    report = summarise(scores, settings, counts)
    if output is not None:
        data = {"runs": read, "judgements": _fingerprint(judged)}
        with claimed(Path(output), "evaluate", {"settings": settings.described(), **data}):
            write_report(report, Path(output))
    return report


def _read_judgements(source: Judgements | str | Path, problems: Problems) -> Judgements:
    where, judgements = "judgements", source
    if isinstance(judgements, str | Path):
        where, judgements = str(source), read_judgements(Path(judgements), problems)
    judged = {query: documents for query, documents in judgements.items() if documents}
    if not judged:
        raise InputError(
            "no query is judged",
            where=where,
            allowed="at least one judgement",
            remedy="check that this is the right file",
        )
    return judged


def _check_queries(run: Run, judged: Judgements, where: str) -> None:
    if run.rankings.keys().isdisjoint(judged):
        raise MismatchError(
            f"run {run.name!r} answers none of the {len(judged):,} judged queries: "
            + (f"its ids look like {min(run.rankings)!r}" if run.rankings else "it is empty"),
            where=where,
            allowed=f"query ids of the judgements, such as {min(judged)!r}",
            remedy="give the judgements of the collection and split that the run was made for",
        )


def _by_document(run: Run, where: str) -> Run:
    for query, ranking in run.rankings.items():
        for found in ranking.document_ids:
            if not is_passage(found):
                raise MismatchError(
                    f"by = document, but {found!r}, a result of query {query!r}, is no passage",
                    where=where,
                    allowed="ids DOCUMENT#NUMBER",
                    remedy="leave by=document out: its ids are of documents already",
                )
    return Run(run.name, {query: one.by_document() for query, one in run.rankings.items()})


def _without_self(run: Run) -> Run:
    rankings = {}
    for query, ranking in run.rankings.items():
        kept = [(document, score) for document, score in ranking if document != query]
        rankings[query] = Ranking(query, tuple(d for d, _ in kept), tuple(s for _, s in kept))
    return Run(run.name, rankings)


def _count(run: Run, kept: Run, judged: Judgements) -> RunCounts:
    answered = {query: kept.rankings[query] for query in judged if kept.rankings.get(query)}
    return RunCounts(
        answered=len(answered),
        missing=len(judged) - len(answered),
        unjudged=sum(query not in judged for query in run.rankings),
        judged_documents=sum(
            document in judged[query]
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
    if counts.missing:
        notice(f"{name}: {counts.missing:,} judged queries have no results and score 0")
    cutoffs = {one: parse_measure(one).params.get("cutoff", 0) for one in settings.measures}
    if deeper := [one for one, cutoff in cutoffs.items() if cutoff > counts.depth]:
        have = "has a cutoff" if len(deeper) == 1 else "have cutoffs"
        depth = f"the run's {counts.depth} results per query"
        notice(f"{name}: {', '.join(deeper)} {have} deeper than {depth}")


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
    """Writes report.json, table.md, table.tex and per_query.tsv into a claimed folder."""
    table = report.table()
    files = {
        "report.json": report.to_json() + "\n",
        "table.md": table.markdown(),
        "table.tex": table.latex(),
        "per_query.tsv": report.per_query_tsv(),
    }
    with writing(output):
        for name, text in files.items():
            (output / name).write_text(text, encoding="utf-8")
        finish(output, report.means)
