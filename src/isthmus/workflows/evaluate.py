"""The command `isthmus evaluate`: systems compared on the judged queries of collections."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from isthmus.collections import Collection, Judged, Problems, open_collection, write_run
from isthmus.collections.judged import is_file, open_judged, usual_split
from isthmus.config import Overrides
from isthmus.config.encoding import EncodingChoice
from isthmus.config.output import claimed, finish
from isthmus.config.seen_queries import seen
from isthmus.errors import SettingsError, shown
from isthmus.evaluation import EvaluationSettings, Report, compare_runs, parse_measure
from isthmus.evaluation.examples import Example
from isthmus.evaluation.examples import examples as found_examples
from isthmus.evaluation.query_scores import known_measures
from isthmus.evaluation.settings import USUAL_MEASURES
from isthmus.progress import notice
from isthmus.records import Judgements, Query, Run
from isthmus.retrieval.fusion import fusions
from isthmus.retrieval.snippets import snippets
from isthmus.retrieval.verbs.index import IndexSettings
from isthmus.workflows.systems import (
    Part,
    Searches,
    System,
    fingerprint_of,
    index_at,
    index_folders,
    is_run,
    judged_queries,
)
from isthmus.workflows.systems import systems as systems_of

if TYPE_CHECKING:
    from isthmus.workflows.systems import Given

_TEST = "test"


class EvaluateSettings(EvaluationSettings, EncodingChoice):
    """Measures, tests, and how systems are indexed, searched and fused.

    How models encode holds for all of them, as in `isthmus index`.
    """

    fusion: str = Field(
        "weighted_sum", description="Fusion of A+B: weighted_sum, reciprocal_rank or raw_sum"
    )
    candidates: int = Field(1000, ge=1, description="Number of documents per query that are fused")
    index: IndexSettings = Field(
        IndexSettings(), description="Settings of the indexes that are built: those of `index`"
    )

    @property
    def of_runs(self) -> EvaluationSettings:
        """Those on which the numbers of given rankings depend."""
        return EvaluationSettings(**{n: getattr(self, n) for n in EvaluationSettings.model_fields})


def evaluate(
    collection: str | Path | Collection | Judgements,
    systems: Sequence[Given] | Mapping[str, Given] | Given,
    *,
    split: str = _TEST,
    measures: Sequence[str] | str = USUAL_MEASURES,
    k: int = 100,
    examples: int = 0,
    also: Sequence[str | Path] = (),
    output: str | Path | None = None,
    settings: EvaluateSettings | Overrides = None,
) -> Report:
    """Compares models, indexes or runs on judged queries, with significance tests.

    Args:
        collection: Collection with judged queries; to measure runs, also a qrels file or a mapping
            {query: {document: grade}}.
        systems: Models, indexes, run files, bm25, A+B (fused), runs {query: {document: score}}, or
            opened indexes and encoders. A mapping gives them names.
        split: Split of the collection (default: test, or the only split).
        measures: Names of measures, as in ir_measures.
        k: Number of documents per query; at least the deepest cutoff of the measures.
        examples: Number of queries to show whose first documents differ.
        also: Further collections, on which the same systems are compared.
        output: Folder for the report, scores per query and run files.
        settings: Further settings, as --set takes them.

    """
    chosen = measures.replace(",", " ").split() if isinstance(measures, str) else measures
    settings = EvaluateSettings.given(settings, {"measures": chosen})
    rows = systems_of(systems)
    parts = list(dict.fromkeys(part for row in rows for part in row.parts))
    if not rows:
        raise SettingsError("no system is named to compare", "name at least one: bm25, say")
    fusions.check(settings.fusion, "fusion")
    _check_several(parts, also)
    every = [collection, *([also] if isinstance(also, str | Path) else also)]
    problems = settings.account()
    sources = [_opened(one, split, k, rows, settings, problems) for one in every]
    names = titles(every)
    if examples and sources[0].collection is None:
        raise SettingsError(
            "examples show documents, which judgements alone do not have",
            "give the collection in place of its qrels, or leave examples out",
        )

    def compared(folder: Path | None) -> Report:
        reports = {}
        for title, source in zip(names, sources, strict=True):
            runs = source.searches.runs(rows, settings.fusion, source.depth)
            report = compare_runs(runs, source.judged, source.settings, source.notes(parts))
            found = _examples(report, runs, source, examples)
            reports[title] = report.model_copy(update={"name": title, "examples": found})
            if folder is not None:
                place = folder / "runs" / (run_name(title) if also else "")
                searched = [run for run, row in zip(runs, rows, strict=True) if _has_searched(row)]
                for run in searched:
                    write_run(place / f"{run_name(run.name)}.trec", run)
        first, *others = reports.values()
        report = first.model_copy(update={"also": {one.name: one for one in others}})
        if folder is not None:
            report.write(folder)
            finish(folder, report.means)
        return report

    if output is None:
        report = compared(None)
    else:
        identity = {
            "settings": settings.model_dump(mode="json"),
            "k": k,
            "examples": examples,
            "collections": [(one.fingerprint, one.split) for one in sources],
            "systems": {
                row.name: [sources[0].searches.origin(part) for part in row.parts] for row in rows
            },
        }
        with claimed(Path(output), "evaluate", identity):
            report = compared(Path(output))
    if problems.counts:
        notice(problems.summary())
    return report


def run_name(system: str) -> str:
    """The name of a system as that of a file."""
    return re.sub(r"[^\w.-]+", "-", system).strip(".-") or "run"


@dataclass(frozen=True)
class _Source:
    """A collection or judgements alone, ready to be searched and measured."""

    collection: Collection | None
    split: str | None
    judged: Judged
    fingerprint: str
    settings: EvaluationSettings
    depth: int
    searches: Searches

    def notes(self, parts: Iterable[Part]) -> list[str]:
        """Sentences on models that were trained on these queries, which are printed too."""
        if self.split is None:
            return []
        texts = [part for part in parts if isinstance(part, str)]
        found = [said for one in texts if (said := seen(one, self.fingerprint, self.split))]
        for note in found:
            notice(note)
        return found


def _opened(
    given: str | Path | Collection | Judgements,
    split: str,
    k: int,
    rows: Sequence[System],
    settings: EvaluateSettings,
    problems: Problems,
) -> _Source:
    collection, chosen, corpus = None, None, None
    queries: list[Query] = []
    named = None if split == _TEST else split  # test: or the only split
    if isinstance(given, Mapping):
        judged = Judged({query: documents for query, documents in given.items() if documents})
    elif isinstance(given, str | Path) and is_file(str(given)):
        judged = open_judged(given, named, problems)
    elif isinstance(given, str | Path | Collection):
        where = "the collection"
        collection = given if isinstance(given, Collection) else None
        if collection is None:
            corpus = where = str(given)
            collection = open_collection(corpus, problems)
        chosen = usual_split(collection, named, where)
        queries, judged = judged_queries(collection, chosen)
        notice(f"{len(queries):,} judged queries of the split {chosen!r} of {where}")
    else:
        raise SettingsError(
            f"collection = {shown(given)} is of type {type(given).__name__}",
            "give a collection, a qrels file, or {query: {document: grade}}",
        )
    known = known_measures(settings.measures, judged)
    cutoffs = (parse_measure(name, answers=True).params.get("cutoff", 0) for name in known)
    depth = max(k, *cutoffs) + settings.drop_self  # one more where one may be dropped
    fused = any(len(row.parts) > 1 for row in rows)
    how = settings.index.model_copy(update={**dict(settings.reading), **settings.chosen()})
    digest = collection.fingerprint() if collection else fingerprint_of(judged.judgements)
    searches = Searches(
        corpus, digest, queries, max(depth, settings.candidates if fused else 0), how, problems,
        index_folders([part for row in rows for part in row.parts]),
    )  # fmt: skip
    of_runs = settings.of_runs.model_copy(update={"measures": known})
    return _Source(collection, chosen, judged, digest, of_runs, depth, searches)


def _check_several(parts: Iterable[Part], also: Sequence[str | Path]) -> None:
    for part in parts if also else ():
        if is_run(part) or index_at(part) is not None:
            name = part if isinstance(part, str) else part.name
            raise SettingsError(
                f"{name!r} has the documents of one collection, and several are compared",
                "name models or bm25, or evaluate one collection after the other",
            )


def _has_searched(row: System) -> bool:
    return len(row.parts) > 1 or not is_run(row.parts[0])


def titles(given: Sequence[object]) -> list[str]:
    """A short name for each collection: the folder's, or all after the scheme; else as given."""
    texts = [str(one) if isinstance(one, str | Path) else "collection" for one in given]
    shorts = []
    for text in texts:
        scheme, _, rest = text.rpartition(":")
        shorts.append(rest if scheme in ("irds", "hf") else Path(rest).name or text)
    counts = Counter(shorts)
    return [
        short if counts[short] == 1 else text for short, text in zip(shorts, texts, strict=True)
    ]


def _examples(
    report: Report, runs: Sequence[Run], source: _Source, count: int
) -> tuple[Example, ...]:
    """The queries whose first documents differ most, with texts and snippets."""
    if not count or source.collection is None:
        return ()
    measure, drop = report.measures[0], report.settings.drop_self
    scores = report.per_query[measure]
    found = found_examples(runs, source.judged.judgements, scores, measure, count, drop)
    asked = {query.id: query.text for query in source.searches.queries}
    wanted = {hit.document for one in found for hit in one.hits.values() if hit is not None}
    texts: dict[str, str] = {}
    for document in source.collection.documents() if wanted else ():
        if document.id in wanted:
            texts[document.id] = document.contents()
            if len(texts) == len(wanted):
                break
    return tuple(_with_texts(one, asked.get(one.query, ""), texts) for one in found)


def _with_texts(example: Example, query: str, texts: Mapping[str, str]) -> Example:
    hits: dict[str, Any] = dict(example.hits)
    for system, hit in example.hits.items():
        if hit is not None:
            (text,) = snippets([texts.get(hit.document, "")], query)
            hits[system] = hit.model_copy(update={"text": text})
    return example.model_copy(update={"text": query, "hits": hits})
