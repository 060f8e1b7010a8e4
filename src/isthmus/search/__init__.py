"""Searcher = encoder + index; fusion of several; re-ranking; the verbs `index` and `search`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from isthmus.search.comparing import Parity, ParitySettings, parity
    from isthmus.search.exporting import ExportSettings, export
    from isthmus.search.hybrid import HybridSearcher
    from isthmus.search.indexing import IndexSettings, index
    from isthmus.search.pipeline import PipelineSearcher
    from isthmus.search.reranking import RerankingSearcher, RerankSettings
    from isthmus.search.searcher import Searcher, open_searcher
    from isthmus.search.searching import Hit, SearchSettings, search
    from isthmus.search.sparsifying import Sparsification, SparsifySettings, sparsify
    from isthmus.search.tuning import TuneSettings, Tuning, tune
    from isthmus.search.updating import (
        AddSettings,
        DeleteSettings,
        MergeSettings,
        Writer,
        add,
        delete,
        merge,
        open_writer,
    )
    from isthmus.search.weighing import TunedWeights, tune_weights

__all__ = [
    "AddSettings",
    "DeleteSettings",
    "ExportSettings",
    "Hit",
    "HybridSearcher",
    "IndexSettings",
    "MergeSettings",
    "Parity",
    "ParitySettings",
    "PipelineSearcher",
    "RerankSettings",
    "RerankingSearcher",
    "SearchSettings",
    "Searcher",
    "Sparsification",
    "SparsifySettings",
    "TuneSettings",
    "TunedWeights",
    "Tuning",
    "Writer",
    "add",
    "delete",
    "export",
    "index",
    "merge",
    "open_searcher",
    "open_writer",
    "parity",
    "search",
    "sparsify",
    "tune",
    "tune_weights",
]

_HOMES = {
    "AddSettings": "updating",
    "DeleteSettings": "updating",
    "ExportSettings": "exporting",
    "Hit": "searching",
    "HybridSearcher": "hybrid",
    "IndexSettings": "indexing",
    "MergeSettings": "updating",
    "Parity": "comparing",
    "ParitySettings": "comparing",
    "PipelineSearcher": "pipeline",
    "RerankSettings": "reranking",
    "RerankingSearcher": "reranking",
    "SearchSettings": "searching",
    "Searcher": "searcher",
    "Sparsification": "sparsifying",
    "SparsifySettings": "sparsifying",
    "TuneSettings": "tuning",
    "TunedWeights": "weighing",
    "Tuning": "tuning",
    "Writer": "updating",
    "add": "updating",
    "delete": "updating",
    "export": "exporting",
    "index": "indexing",
    "merge": "updating",
    "open_searcher": "searcher",
    "open_writer": "updating",
    "parity": "comparing",
    "search": "searching",
    "sparsify": "sparsifying",
    "tune": "tuning",
    "tune_weights": "weighing",
}


def __getattr__(name: str) -> Any:
    """A public name, imported when it is first asked for, so that importing the package is free."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
