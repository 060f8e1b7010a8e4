"""Rank-1 examples of a comparison, with the texts of its collection."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from isthmus.collections import Collection, Problems, read_run
from isthmus.evaluation import Report
from isthmus.evaluation.first_hits import Example, examples
from isthmus.records import Document, Judgements, Query, Run
from isthmus.retrieval.snippets import snippets


def with_examples(
    report: Report,
    runs: Sequence[Run | str | Path],
    judged: Judgements,
    collection: Collection,
    queries: Iterable[Query],
    count: int,
) -> Report:
    """The report with so many examples: queries whose first hits differ, widest scores first."""
    if not count:
        return report
    measure = report.measures[0]
    read = [run if isinstance(run, Run) else read_run(Path(run), Problems("skip")) for run in runs]
    scores = report.per_query[measure]
    found = examples(read, judged, scores, measure, count, report.settings.drop_self)
    asked = {query.id: query.text for query in queries}
    wanted = {hit.document for one in found for hit in one.hits.values() if hit is not None}
    texts = _texts(collection.documents(), wanted)
    shown = [_with_texts(one, asked.get(one.query, ""), texts) for one in found]
    return report.model_copy(update={"examples": tuple(shown)})


def _texts(documents: Iterable[Document], wanted: set[str]) -> dict[str, str]:
    """The contents of the wanted documents, by id; read as far as need be."""
    found: dict[str, str] = {}
    for document in documents if wanted else ():
        if document.id in wanted:
            found[document.id] = document.contents()
            if len(found) == len(wanted):
                break
    return found


def _with_texts(example: Example, query: str, texts: Mapping[str, str]) -> Example:
    hits = dict(example.hits)
    for system, hit in example.hits.items():
        if hit is not None:
            (shown,) = snippets([texts.get(hit.document, "")], query)
            hits[system] = hit.model_copy(update={"text": shown})
    return example.model_copy(update={"text": query, "hits": hits})
