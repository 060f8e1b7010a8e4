"""How much each retriever of an index counts, chosen on judged queries."""

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
from isthmus.indexes.manifest import stated_manifest
from isthmus.progress import notice
from isthmus.records import Judgements, Query
from isthmus.retrieval.fusion import fusions
from isthmus.retrieval.hybrid_folder import (
    Combination,
    FusionSettings,
    index_folder,
    is_hybrid,
    open_together,
    read_hybrid,
)
from isthmus.retrieval.living_hybrid import combine
from isthmus.retrieval.searcher import Searcher
from isthmus.retrieval.weights import TunedWeights, tune_weights


class TuneSettings(FusionSettings, ReadingSettings):
    """What is measured, how finely weights are tried, and what is fused."""

    verb = "tune"

    measure: str = Field("nDCG@10", description="any measure of `isthmus evaluate`")
    steps: int = Field(20, ge=1, le=100, description="weights are multiples of 1 / steps")
    folds: int = Field(5, ge=2, description="parts of the queries, for the estimate on new ones")


@dataclass(frozen=True, slots=True)
class Tuning(Shown):
    """The weights of an index's retrievers, what they measure, and every point that was tried."""

    found: TunedWeights
    names: tuple[str, ...]
    table: Table

    @property
    def weights(self) -> dict[str, float]:
        """The weight of each retriever."""
        return dict(zip(self.names, self.found.weights, strict=True))

    def to_dict(self) -> dict[str, Any]:
        """The weights, and what they measure on the queries that chose them and on others."""
        return {
            "weights": self.weights,
            "value": self.found.value,
            "held_out": self.found.held_out,
            "equal_weights": self.found.alike,
        }

    __repr__ = Shown.__repr__

    def tables(self) -> list[Table | str]:
        """What each retriever, equal weights and the best weights measure."""
        return [self.table, "The weights are stored in the index; every search uses them."]


def tune(
    index: str | Path,
    collection: str,
    *,
    split: str = "dev",
    measure: str | None = None,
    settings: TuneSettings | Overrides = None,
) -> Tuning:
    """The weights with which the retrievers of an index answer judged queries best.

    They are stored in the index, and every search fuses with them from then on.
    """
    settings = TuneSettings.given(settings, {"measure": measure})
    check_arguments("tune", {"index": index, "collection": collection})
    folder = index_folder(index)
    if not is_hybrid(folder):
        stated_manifest(folder)  # refuses what is no index
        raise SettingsError(
            f"the index {str(folder)!r} has one retriever: there are no weights to tune",
            "build one with several: isthmus index DOCUMENTS -m bm25 -m MODEL -o INDEX",
        )
    parse_measure(settings.measure, "measure")
    fusions.check(settings.fusion, "fusion")
    problems = settings.account()
    source = open_collection(collection, problems)
    judgements = Judged.of(source, usual_split(source, split, collection)).judgements
    asked = [query for query in source.queries() if judgements.get(query.id)]
    folders = read_hybrid(folder).folders(folder)
    searchers = open_together(folders)
    _check_known(asked, judgements, searchers[0], collection)
    together = Combination.model_validate(
        settings.model_dump(include=set(FusionSettings.model_fields))
    )
    hybrid = together.searcher(searchers)
    readable = [query for query in asked if hybrid.has_tokens(query.text)]
    if len(readable) < len(asked):
        notice(f"{len(asked) - len(readable):,} queries without words to search for are left out")
    tuned = tune_weights(
        hybrid, readable, judgements, settings.measure, settings.steps, settings.folds
    )
    _warn_of_overfitting(tuned)
    combine(folder, together.model_copy(update={"weights": list(tuned.weights)}))
    names = tuple(one.name for one in folders)
    return Tuning(tuned, names, _table(tuned, names, settings, len(readable)))


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
