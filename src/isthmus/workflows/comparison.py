"""The verb `isthmus evaluate`: run files, or models that are indexed and searched for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, overload

from pydantic import Field

from isthmus.collections import open_collection, write_run
from isthmus.collections.judged import Judged, usual_split
from isthmus.config import Overrides
from isthmus.config.cache import cache_folder
from isthmus.config.encoding import EncodingChoice
from isthmus.config.output import claimed
from isthmus.config.seen_queries import seen
from isthmus.config.settings import check_arguments, several
from isthmus.errors import SettingsError
from isthmus.evaluation import EvaluationSettings, Report
from isthmus.evaluation import evaluate as evaluate_runs
from isthmus.evaluation.evaluate import usual_measures, write_report
from isthmus.evaluation.measures import parse_measure
from isthmus.progress import notice
from isthmus.records import Judgements, Ranking, Run
from isthmus.retrieval.fusion import Fusion, fuse, fusions
from isthmus.retrieval.verbs.index import IndexSettings
from isthmus.workflows.compared_systems import Searches, System, systems
from isthmus.workflows.rank_one import with_examples

_DEPTH = 100


class EvaluateSettings(EvaluationSettings, EncodingChoice):
    """Measures and tests; with a collection also how it is indexed and searched.

    How models encode holds for all of them, as in `isthmus index`.
    """

    split: str | None = Field(
        None, description="of the collection; null: test, or the only one that there is"
    )
    depth: int | None = Field(
        None, ge=1, description="documents per query; null: 100, or the measures' deepest cutoff"
    )
    fusion: str = Field(
        "weighted_sum", description="of hybrids: weighted_sum, reciprocal_rank or raw_sum"
    )
    candidates: int = Field(1000, ge=1, description="documents per query that hybrids fuse")
    examples: int = Field(
        0, ge=0, description="queries to show whose first documents differ between systems"
    )
    index: IndexSettings = Field(
        IndexSettings(), description="how models are indexed: all that `isthmus index` takes"
    )

    @property
    def of_runs(self) -> EvaluationSettings:
        """Those on which the numbers of given rankings depend."""
        given = self.model_fields_set & set(EvaluationSettings.model_fields)
        return EvaluationSettings(**{name: getattr(self, name) for name in given})

    def deepest(self) -> int:
        """How many documents of each ranking are evaluated; one more where one may be dropped."""
        parsed = (parse_measure(name, answers=True) for name in self.measures)
        cutoffs = [measure.params.get("cutoff", 0) for measure in parsed]
        return (self.depth or max(_DEPTH, *cutoffs)) + self.drop_self


@overload
def evaluate(
    runs: Sequence[Run | str | Path] | Run | str | Path = (),
    qrels: Judgements | str | Path | None = None,
    *,
    collection: str | None = None,
    models: Sequence[str] | str = (),
    split: str | None = None,
    depth: int | None = None,
    measures: str | Sequence[str] | None = None,
    examples: int | None = None,
    output: str | Path | None = None,
    settings: EvaluationSettings | Overrides = None,
) -> Report: ...


@overload
def evaluate(
    runs: Sequence[Run | str | Path] | Run | str | Path = (),
    qrels: Judgements | str | Path | None = None,
    *,
    collection: str | None = None,
    models: Sequence[str] | str = (),
    split: list[str],
    depth: int | None = None,
    measures: str | Sequence[str] | None = None,
    examples: int | None = None,
    output: str | Path | None = None,
    settings: EvaluationSettings | Overrides = None,
) -> dict[str, Report]: ...


def evaluate(
    runs: Sequence[Run | str | Path] | Run | str | Path = (),
    qrels: Judgements | str | Path | None = None,
    *,
    collection: str | None = None,
    models: Sequence[str] | str = (),
    split: str | list[str] | None = None,
    depth: int | None = None,
    measures: str | Sequence[str] | None = None,
    examples: int | None = None,
    output: str | Path | None = None,
    settings: EvaluationSettings | Overrides = None,
) -> Report | dict[str, Report]:
    """The report of one or several systems over all judged queries.

    With `qrels`, a file or a collection, of run files. With a `collection`, of models (also "bm25",
    index folders, "A+B", and "hybrid": every model named, each fused with BM25), which are indexed,
    searched with a split's judged queries, and compared; what is no file among `runs` counts as a
    model. Run again, it goes on. Measures are a sequence or one text. `output` gets tables, JSON,
    scores and run files; of a list of splits, in a folder each. `examples` are queries to show.
    """
    if isinstance(split, list):
        return {
            name: evaluate(
                runs,
                qrels,
                collection=collection,
                models=models,
                split=name,
                depth=depth,
                measures=measures,
                examples=examples,
                output=None if output is None else Path(output) / name.replace("/", "-"),
                settings=settings,
            )
            for name in split
        }
    if isinstance(measures, str):
        measures = measures.replace(",", " ").split()
    flags = {"measures": measures, "split": split, "depth": depth, "examples": examples}
    if isinstance(settings, EvaluationSettings):  # those of run files, or all
        settings = settings.model_dump(exclude_unset=True)
    settings = EvaluateSettings.given(settings, flags)
    given = [runs] if isinstance(runs, Run | str | Path) else list(runs)
    judged = {} if isinstance(qrels, Mapping) else {"qrels": qrels}
    check_arguments("evaluate", {}, {"collection": collection, "output": output, **judged})
    for one in given:
        check_arguments("evaluate", {} if isinstance(one, Run) else {"runs": one})
    named = several(models)
    if collection is None:
        return _evaluate_runs(given, qrels, named, output, settings)
    if qrels is not None:
        raise SettingsError(
            "--qrels: a collection has its judgements already",
            "leave out --qrels, and choose among its judgements by --split",
        )
    named += [str(one) for one in given if not _is_run(one)]
    return _compare(collection, named, list(filter(_is_run, given)), output, settings)


def _is_run(source: Run | str | Path) -> bool:
    return isinstance(source, Run) or Path(source).is_file()


def _evaluate_runs(
    runs: Sequence[Run | str | Path],
    qrels: Judgements | str | Path | None,
    models: Sequence[str],
    output: str | Path | None,
    settings: EvaluateSettings,
) -> Report:
    of_collections = EvaluateSettings.model_fields.keys() - EvaluationSettings.model_fields
    unused = (of_collections - {"split"}) & settings.model_fields_set
    if models or unused:
        name = "--models" if models else min(unused)
        raise SettingsError(
            f"{name} has no effect without a collection",
            "add --collection: anything with documents, queries and judgements",
        )
    if qrels is None:
        raise SettingsError(
            "there are no judgements to evaluate by",
            "add --qrels, a file or a collection, or --collection and the models to compare",
        )
    return evaluate_runs(
        runs, qrels, split=settings.split, output=output, settings=settings.of_runs
    )


def _compare(
    spec: str,
    named: Sequence[str],
    runs: Sequence[Run | str | Path],
    output: str | Path | None,
    settings: EvaluateSettings,
) -> Report:
    rows = systems(named)
    if not rows:
        raise SettingsError(
            "--models: no system is named to compare",
            "name at least one: --models MODEL bm25 hybrid",
        )
    fusions.check(settings.fusion, "fusion")
    source = open_collection(spec, problems := settings.account())
    split = usual_split(source, settings.split, spec)
    judged = Judged.of(source, split)
    settings = settings.model_copy(update={"measures": usual_measures(settings, judged)})
    queries = [query for query in source.queries() if query.id in judged.queries]
    deepest = settings.deepest()
    deep = max(deepest, settings.candidates if any(len(row.parts) > 1 for row in rows) else 0)
    how = settings.index.model_copy(update={**dict(settings.reading), **settings.chosen()})
    searches = Searches(spec, source.fingerprint(), queries, deep, how)
    origins = {part: searches.origin(part) for row in rows for part in row.parts}
    identity = {
        "settings": settings.model_dump(mode="json", exclude={"examples"}),
        "collection": searches.fingerprint,
        "split": split,
        "systems": {row.name: [origins[part] for part in row.parts] for row in rows},
        "runs": [str(run) if isinstance(run, str | Path) else run.name for run in runs],
    }
    notice(f"{len(queries):,} judged queries of the split {split!r}")
    notes = [said for part in origins if (said := seen(part, searches.fingerprint, split))]
    for note in notes:
        notice(note)

    def measured(every: Sequence[Run | str | Path]) -> Report:
        report = evaluate_runs(every, judged, settings=settings.of_runs, notes=notes)
        shown = settings.examples
        return with_examples(report, every, judged.judgements, source, queries, shown)

    if output is None:
        return measured([*_ranked(searches, rows, origins, settings), *runs])
    with claimed(Path(output), "evaluate", identity):
        found = _ranked(searches, rows, origins, settings)
        report = measured([*found, *runs])
        for run in found:
            write_run(Path(output) / "runs" / f"{run.name.replace('/', '_')}.trec", run)
        write_report(report, Path(output))
    if problems.counts:
        notice(problems.summary())
    return report


def _ranked(
    searches: Searches,
    rows: Sequence[System],
    origins: Mapping[str, str],
    settings: EvaluateSettings,
) -> list[Run]:
    fusion: Fusion = fusions.load(settings.fusion, where="fusion")
    rankings: dict[str, dict[str, Ranking]] = {}
    for number, (part, origin) in enumerate(origins.items(), 1):
        notice(f"{part} ({number} of {len(origins)})")
        rankings[part] = searches.rankings(part, origin)
    notice(f"indexes and rankings are kept in {cache_folder()}")
    return [_run(row, rankings, fusion, settings.deepest()) for row in rows]


def _run(
    row: System, rankings: Mapping[str, Mapping[str, Ranking]], fusion: Fusion, depth: int
) -> Run:
    """The rankings of a system, fused if it has several parts."""
    first, *others = (rankings[part] for part in row.parts)
    if not others:
        return Run(row.name, {query: ranking.top(depth) for query, ranking in first.items()})
    alike: Any = [1.0] * len(row.parts)
    return Run(
        row.name,
        {
            query: fuse([first[query], *(one[query] for one in others)], alike, fusion, depth)
            for query in first
        },
    )
