"""The command `isthmus evaluate`: systems compared on the judged queries of collections."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any

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
from isthmus.retrieval.index import IndexSettings
from isthmus.retrieval.snippets import snippets
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
    systems: Any,
    *,
    split: str = _TEST,
    measures: Sequence[str] | str = USUAL_MEASURES,
    k: int = 100,
    examples: int = 0,
    also: Sequence[str | Path] = (),
    output: str | Path | None = None,
    settings: EvaluateSettings | Overrides = None,
) -> Report:
    """The report of systems on the judged queries of collections; as `isthmus.evaluate`."""
    names = [measures] if isinstance(measures, str) else measures
    chosen = " ".join(names).replace(",", " ").split()
    settings = EvaluateSettings.given(settings, {"measures": chosen})
    rows = systems_of(systems)
    if not rows:
        raise SettingsError("no system is named to compare", "name at least one: bm25, say")
    fusions.check(settings.fusion, "fusion")
    _check_several([part for row in rows for part in row.parts], also)
    every = [collection, *([also] if isinstance(also, str | Path) else also)]
    problems = settings.account()
    sources = opened([(one, split) for one in every], rows, settings, k, problems)
    if examples and sources[0].collection is None:
        raise SettingsError(
            "examples show documents, which judgements alone do not have",
            "give the collection in place of its qrels, or leave examples out",
        )
    if output is None:
        report = measured(sources, rows, settings, examples)
    else:
        identity = {
            "settings": settings.model_dump(mode="json"),
            "k": k,
            "examples": examples,
            "collections": [(one.searches.fingerprint, one.split) for one in sources],
            "systems": {
                row.name: [sources[0].searches.origin(part) for part in row.parts] for row in rows
            },
        }
        folder = Path(output)
        with claimed(folder, "evaluate", identity):
            report = measured(sources, rows, settings, examples, folder=folder)
            report.write(folder)
            finish(folder, report.means)
    if problems.counts:
        notice(problems.summary())
    return report


@dataclass(frozen=True)
class Source:
    """A collection or judgements alone, ready to be searched and measured."""

    name: str
    collection: Collection | None
    split: str | None
    judged: Judged
    measures: tuple[str, ...]
    depth: int
    searches: Searches


def opened(
    every: Sequence[tuple[Any, str]],
    rows: Sequence[System],
    settings: EvaluateSettings,
    k: int,
    problems: Problems,
    indexes: Sequence[Path] = (),
) -> list[Source]:
    """The collections, each with a split, as systems are measured on them.

    `indexes` are those in which vectors of their documents may be, besides the systems' own.
    """
    names = titles([one for one, _ in every])
    parts = [part for row in rows for part in row.parts]
    fused = any(len(row.parts) > 1 for row in rows)
    how = settings.index.model_copy(update={**dict(settings.reading), **settings.chosen()})
    found = []
    for name, (given, split) in zip(names, every, strict=True):
        corpus, collection, chosen, queries, judged = _read(given, split, problems)
        known = known_measures(settings.measures, judged)
        cutoffs = (parse_measure(one, answers=True).params.get("cutoff", 0) for one in known)
        depth = max(k, *cutoffs) + settings.drop_self  # one more where one may be dropped
        deep = max(depth, settings.candidates if fused else 0)
        digest = collection.fingerprint() if collection else fingerprint_of(judged.judgements)
        places = [*index_folders(parts), *indexes]
        searches = Searches(corpus, digest, queries, deep, how, problems, places)
        found.append(Source(name, collection, chosen, judged, known, depth, searches))
    return found


def _read(
    given: Any, split: str, problems: Problems
) -> tuple[str | None, Collection | None, str | None, list[Query], Judged]:
    """The name of a collection, itself, its split, and its judged queries; or judgements alone."""
    named = None if split == _TEST else split  # test: or the only split
    if isinstance(given, Mapping):
        grades = {str(query): _grades(str(query), one) for query, one in given.items() if one}
        return None, None, None, [], Judged(grades)
    if isinstance(given, str | Path) and is_file(str(given)):
        return None, None, None, [], open_judged(given, named, problems)
    if isinstance(given, str | Path):
        spec: str | None = str(given)
        collection = open_collection(str(given), problems)
    elif isinstance(given, Collection):
        spec, collection = given.spec, given
    else:
        raise SettingsError(
            f"collection = {shown(given)} is of type {type(given).__name__}",
            "give a collection, a qrels file, or {query: {document: grade}}",
        )
    where = spec or "the collection"
    chosen = usual_split(collection, named, where)
    queries, judged = judged_queries(collection, chosen)
    notice(f"{len(queries):,} judged queries of the split {chosen!r} of {where}")
    return spec, collection, chosen, queries, judged


def _grades(query: str, given: Any) -> dict[str, int]:
    """The grades of the documents of a query, which qrels in memory hold."""
    if isinstance(given, Mapping) and all(
        isinstance(one, Real) and float(one).is_integer() for one in given.values()
    ):
        return {str(document): int(grade) for document, grade in given.items()}
    raise SettingsError(
        f"the qrels in memory have {shown(given)} for {query!r}, and no whole numbers by document",
        "give {query: {document: grade}} with grades such as 0 and 1",
    )


def measured(
    sources: Sequence[Source],
    rows: Sequence[System],
    settings: EvaluateSettings,
    examples: int = 0,
    pairs: Sequence[tuple[str, str]] | None = None,
    folder: Path | None = None,
) -> Report:
    """The report of systems on collections, of which `pairs` are tested; None: all of them.

    In a folder, the run files of systems that were searched are written.
    """
    reports = []
    for source in sources:
        runs = source.searches.runs(rows, settings.fusion, source.depth)
        of_runs = settings.of_runs.model_copy(update={"measures": source.measures})
        searched = [row.name for row in rows if not any(map(is_run, row.parts))]
        notes = _notes(source, rows)
        report = compare_runs(runs, source.judged, of_runs, notes, pairs, searched)
        found = _examples(report, runs, source, examples)
        reports.append(report.model_copy(update={"name": source.name, "examples": found}))
        if folder is not None:
            place = folder / "runs" / (run_name(source.name) if len(sources) > 1 else "")
            for run, row in zip(runs, rows, strict=True):
                if len(row.parts) > 1 or not is_run(row.parts[0]):
                    write_run(place / f"{run_name(run.name)}.trec", run)
    first, *others = reports
    return first.model_copy(update={"also": {one.name: one for one in others}})


def _notes(source: Source, rows: Sequence[System]) -> list[str]:
    """Sentences on models that were trained on these queries, which are printed too."""
    if source.split is None:
        return []
    texts = dict.fromkeys(part for row in rows for part in row.parts if isinstance(part, str))
    fingerprint = source.searches.fingerprint
    found = [said for one in texts if (said := seen(one, fingerprint, source.split))]
    for note in found:
        notice(note)
    return found


def run_name(system: str) -> str:
    """The name of a system as that of a file."""
    return re.sub(r"[^\w.-]+", "-", system).strip(".-") or "run"


def _check_several(parts: Iterable[Part], also: Sequence[str | Path]) -> None:
    for part in parts if also else ():
        if is_run(part) or index_at(part) is not None:
            name = part if isinstance(part, str) else part.name
            raise SettingsError(
                f"{name!r} has the documents of one collection, and several are compared",
                "name models or bm25, or evaluate one collection after the other",
            )


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
    report: Report, runs: Sequence[Run], source: Source, count: int
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
            (snippet,) = snippets([texts.get(hit.document, "")], query)
            hits[system] = hit.model_copy(update={"text": snippet.text})
    return example.model_copy(update={"text": query, "hits": hits})
