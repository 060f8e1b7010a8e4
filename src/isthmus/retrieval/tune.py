"""How much each field of an index counts, chosen on judged queries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field

from isthmus.collections import open_collection
from isthmus.collections.judged import Judged, usual_split
from isthmus.collections.problems import ReadingSettings
from isthmus.config import Overrides
from isthmus.config.settings import check_arguments
from isthmus.errors import MismatchError, SettingsError
from isthmus.evaluation import Cell, Table
from isthmus.evaluation.measures import parse_measure
from isthmus.evaluation.tables import Shown, format_score
from isthmus.indexes.index import Index
from isthmus.indexes.manifest import index_folder, read_manifest, sizes_of
from isthmus.indexes.writer import IndexWriter
from isthmus.progress import notice
from isthmus.records import Judgements, Query
from isthmus.retrieval.fusion import fusions
from isthmus.retrieval.searcher import open_searcher
from isthmus.retrieval.weights import TunedWeights, tune_weights

_STORED = "The weights are stored in the index; every search uses them."
_NOT_STORED = (
    "The weights are not stored: on queries that did not choose them, they do worse than equal "
    "ones or one field alone. These queries are too few, or too different, to tune on."
)


class TuneSettings(ReadingSettings):
    """What is measured, how finely weights are tried, and what is fused."""

    verb = "tune"

    fusion: str = Field("weighted_sum", description="weighted_sum, reciprocal_rank or raw_sum")
    candidates: int = Field(1000, ge=1, description="documents per query and field that are fused")
    measure: str = Field("nDCG@10", description="any measure of `isthmus evaluate`")
    steps: int = Field(20, ge=1, le=100, description="weights are multiples of 1 / steps")
    folds: int = Field(5, ge=2, description="parts of the queries, for the estimate on new ones")


@dataclass(frozen=True, slots=True)
class Tuning(Shown):
    """The weights of an index's fields, what they measure, and every point that was tried."""

    found: TunedWeights
    names: tuple[str, ...]
    table: Table
    stored: bool

    @property
    def weights(self) -> dict[str, float]:
        """The weight of each field."""
        return dict(zip(self.names, self.found.weights, strict=True))

    def to_dict(self) -> dict[str, Any]:
        """The weights, and what they measure on the queries that chose them and on others."""
        return {
            "weights": self.weights,
            "value": self.found.value,
            "held_out": self.found.held_out,
            "equal_weights": self.found.alike,
            "stored": self.stored,
        }

    __repr__ = Shown.__repr__

    def tables(self) -> list[Table | str]:
        """What each field, equal weights and the best weights measure."""
        return [self.table, _STORED if self.stored else _NOT_STORED]


def tune(
    index: str | Path,
    collection: str,
    *,
    split: str = "dev",
    measure: str | None = None,
    settings: TuneSettings | Overrides = None,
) -> Tuning:
    """The weights with which the fields of an index answer judged queries best.

    They are stored in the index, and every search fuses with them from then on; not where, on
    queries that did not choose them, equal weights or one field alone do better.
    """
    settings = TuneSettings.given(settings, {"measure": measure})
    check_arguments("tune", {"index": index, "collection": collection})
    folder = index_folder(index)
    names = [name for name, weight in _weighted(folder).items() if weight]
    if len(names) < 2:
        raise SettingsError(
            f"the index {str(folder)!r} has one field: there are no weights to tune",
            f"give it another: isthmus index DOCUMENTS -m MODEL -o {folder}",
        )
    parse_measure(settings.measure, "measure")
    fusions.check(settings.fusion, "fusion")
    problems = settings.account()
    source = open_collection(collection, problems)
    judgements = Judged.of(source, usual_split(source, split, collection)).judgements
    asked = [query for query in source.queries() if judgements.get(query.id)]
    changes = {
        "fusion": settings.fusion,
        "candidates": settings.candidates,
        "weights": _weighted(folder),
    }
    alike = read_manifest(folder).fusion.model_copy(update=changes)
    searcher = open_searcher(folder, fusion=dict(alike))
    _check_known(asked, judgements, searcher.index, collection)
    readable = [query for query in asked if searcher.has_tokens(query.text)]
    if len(readable) < len(asked):
        notice(f"{len(asked) - len(readable):,} queries without words to search for are left out")
    tuned = tune_weights(
        searcher, readable, judgements, settings.measure, settings.steps, settings.folds
    )
    better = not tuned.held_out < max(tuned.alike, *tuned.alone)
    if better:
        weights = {**alike.weights, **dict(zip(searcher.fields, tuned.weights, strict=True))}
        with IndexWriter(folder) as writer:
            writer.commit(fusion=alike.model_copy(update={"weights": weights}))
    table = _table(tuned, searcher.fields, settings, len(readable))
    return Tuning(tuned, searcher.fields, table, better)


def _weighted(folder: Path) -> dict[str, float]:
    """The fields of an index, 0 for those that are searched by their names alone."""
    fields = read_manifest(folder).fields
    sizes = sizes_of(fields)
    return {name: float(name not in sizes) for name in fields}


def _check_known(
    asked: Sequence[Query], judgements: Judgements, index: Index, qrels: str | Path
) -> None:
    """Refuses judgements of another corpus, with which any weights would measure 0."""
    every = (entry for query in asked for entry in judgements[query.id].items())
    relevant = {document for document, grade in every if grade > 0}
    unknown = [one for one in sorted(relevant) if index.row(one) is None]
    if relevant and len(unknown) == len(relevant):
        raise MismatchError(
            f"{qrels}: not one of the {len(relevant):,} relevant documents is in the index: its "
            f"ids look like {next(index.ids())!r}, not {unknown[0]!r}",
            "give the judgements of the collection that was indexed",
        )
    if unknown:
        notice(
            f"{len(unknown):,} of {len(relevant):,} relevant documents are not in the index and "
            f"count as not found, first {unknown[0]!r}"
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
        f"{settings.fusion} of {settings.candidates:,} candidates of each field."
    )
    return Table(("system", "weights", settings.measure), cells, caption, names=2)
