"""The verb `isthmus tune`: indexes and judged queries in, a hybrid that `search` opens out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import xxhash
from pydantic import Field

from isthmus.collections import read_judgements, read_queries
from isthmus.collections.problems import ReadingSettings
from isthmus.config import Overrides
from isthmus.config.output import claimed, finish, write_json, writing
from isthmus.config.sealed_json import sealed
from isthmus.config.settings import check_arguments, several
from isthmus.errors import MismatchError
from isthmus.evaluation import Cell, Table
from isthmus.evaluation.measures import parse_measure
from isthmus.evaluation.tables import format_score
from isthmus.indexes.manifest import HYBRID
from isthmus.progress import notice
from isthmus.records import Judgements, Query
from isthmus.retrieval.fusion import fusions
from isthmus.retrieval.hybrid_folder import (
    Combination,
    FusionSettings,
    Hybrid,
    Member,
    is_living,
    open_together,
    read_hybrid,
)
from isthmus.retrieval.living_hybrid import combine
from isthmus.retrieval.searcher import Searcher
from isthmus.retrieval.weights import TunedWeights, tune_weights


class TuneSettings(FusionSettings, ReadingSettings):
    """What is measured, how finely weights are tried, and what is fused."""

    verb = "tune"

    measure: str = Field("RR@10", description="any measure of `isthmus evaluate`")
    steps: int = Field(20, ge=1, le=100, description="weights are multiples of 1 / steps")
    folds: int = Field(5, ge=2, description="parts of the queries, for the estimate on new ones")


@dataclass(frozen=True, slots=True)
class Tuning:
    """What was found, as numbers and as a table, and the folder that can be searched."""

    found: TunedWeights
    table: Table
    folder: Path


def tune(
    indexes: Iterable[str | Path] | str | Path,
    queries: str | Path,
    qrels: str | Path,
    output: str | Path,
    *,
    measure: str | None = None,
    settings: TuneSettings | Overrides = None,
) -> Tuning:
    """The weights under which the indexes together answer the judged queries best.

    The folder `output` then holds hybrid.json, which makes it something to search, table.md
    and weights.tsv with every point tried. One folder of several indexes keeps the
    weights itself, and `output` the rest.
    """
    settings = TuneSettings.given(settings, {"measure": measure})
    check_arguments("tune", {"queries": queries, "qrels": qrels, "output": output})
    indexes = several(indexes)
    parse_measure(settings.measure, "measure")
    fusions.check(settings.fusion, "fusion")
    problems = settings.account()
    judgements = read_judgements(Path(qrels), problems)
    asked = [q for q in read_queries(queries, problems) if judgements.get(q.id)]
    living = Path(indexes[0]) if len(indexes) == 1 and is_living(indexes[0]) else None
    if living is not None:
        indexes = several(read_hybrid(living).folders(living))
    searchers = open_together(indexes)
    _check_known(asked, judgements, searchers[0], qrels)
    identity = {
        "settings": settings.model_dump(),
        "indexes": [searcher.index.manifest.identity() for searcher in searchers],
        "judgements": xxhash.xxh3_128(repr(sorted(judgements.items())).encode()).hexdigest(),
        "queries": xxhash.xxh3_128(repr(asked).encode()).hexdigest(),
    }
    output = Path(output)
    with claimed(output, "tune", identity):
        together = Combination.model_validate(
            settings.model_dump(include=set(FusionSettings.model_fields))
        )
        hybrid = together.searcher(searchers)
        readable = [query for query in asked if hybrid.has_tokens(query.text)]
        if len(readable) < len(asked):
            notice(
                f"{len(asked) - len(readable):,} queries without words to search for are left out"
            )
        tuned = tune_weights(
            hybrid, readable, judgements, settings.measure, settings.steps, settings.folds
        )
        _warn_of_overfitting(tuned)
        names = [Path(index).name if living else str(index) for index in indexes]
        table = _table(tuned, names, settings, len(readable))
        weights = list(tuned.weights)
        tuned_together = together.model_copy(update={"weights": weights})
        _write(output, tuned, names, settings.measure, table)
        if living is not None:
            combine(living, tuned_together)
        else:
            _write_hybrid(output, indexes, searchers, tuned_together)
        finish(output, {"weights": weights, "value": tuned.value, "held_out": tuned.held_out})
        return Tuning(tuned, table, living or output)


def _check_known(
    asked: Sequence[Query], judgements: Judgements, searcher: Searcher, qrels: str | Path
) -> None:
    """Refuses judgements of another corpus, with which any weights would measure 0."""
    every = (entry for query in asked for entry in judgements[query.id].items())
    relevant = {document for document, grade in every if grade > 0}
    unknown = [one for one in sorted(relevant) if searcher.index.store.row(one) is None]
    if relevant and len(unknown) == len(relevant):
        raise MismatchError(
            f"{qrels}: not one of the {len(relevant):,} relevant documents is in the index: its "
            f"ids look like {searcher.index.store.id(0)!r}, not {unknown[0]!r}",
            "give the judgements of the collection that was indexed",
        )
    if unknown:
        notice(
            f"{len(unknown):,} of {len(relevant):,} relevant documents are not in the index and "
            f"count as not found, first {unknown[0]!r}"
        )


def _write_hybrid(
    output: Path,
    indexes: Sequence[str | Path],
    searchers: Sequence[Searcher],
    combination: Combination,
) -> None:
    members = [
        # In full, so that the hybrid finds its indexes from any folder.
        Member(
            index=str(Path(index).resolve()), encoder=searcher.index.manifest.encoder_fingerprint
        )
        for index, searcher in zip(indexes, searchers, strict=True)
    ]
    found = Hybrid(members=members, combination=combination)
    write_json(output / HYBRID, sealed(found.model_dump()))


def _warn_of_overfitting(tuned: TunedWeights) -> None:
    if tuned.held_out < max(tuned.alike, *tuned.alone):
        notice(
            "on queries that did not choose them, the weights do worse than equal ones, or "
            "than one system alone: these queries are too few, or too different, to tune on"
        )


def _table(
    tuned: TunedWeights, names: Sequence[str], settings: TuneSettings, queries: int
) -> Table:
    """A row per system alone, all alike, the best weights, and those on queries not seen."""
    rows = [(name, "", value) for name, value in zip(names, tuned.alone, strict=True)]
    rows += [
        ("all alike", "", tuned.alike),
        ("tuned", ", ".join(f"{weight:g}" for weight in tuned.weights), tuned.value),
        ("tuned, on held-out queries", "", tuned.held_out),
    ]
    cells = tuple((Cell(n), Cell(w), Cell(format_score(value))) for n, w, value in rows)
    caption = (
        f"Means over {queries:,} judged queries. Held-out: each of {min(settings.folds, queries)} "
        f"parts by the weights that are best on the others. {len(tuned.tried):,} weights tried, "
        f"{settings.fusion} of {settings.candidates:,} candidates"
        + (" of the first index." if settings.pipeline else " of each index.")
    )
    return Table(("system", "weights", settings.measure), cells, caption, names=2)


def _write(
    output: Path, tuned: TunedWeights, names: Sequence[str], measure: str, table: Table
) -> None:
    lines = ["\t".join([*names, measure])]
    lines += ["\t".join(f"{n:g}" for n in (*point, value)) for point, value in tuned.tried]
    with writing(output):
        (output / "table.md").write_text(table.markdown(), encoding="utf-8")
        (output / "weights.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
