"""Searcher = encoder + index; fusion of several; re-ranking; the verbs `index` and `search`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from isthmus.retrieval.cascade import CascadeSearcher
    from isthmus.retrieval.engine_parity import Parity, ParitySettings, parity
    from isthmus.retrieval.hybrid import HybridSearcher
    from isthmus.retrieval.reranker import RerankingSearcher, RerankSettings
    from isthmus.retrieval.searcher import Searcher, open_searcher
    from isthmus.retrieval.verbs.export import ExportSettings, export
    from isthmus.retrieval.verbs.index import IndexSettings, index
    from isthmus.retrieval.verbs.search import Hit, SearchSettings, search
    from isthmus.retrieval.verbs.sparsify import Sparsification, SparsifySettings, sparsify
    from isthmus.retrieval.verbs.tune import TuneSettings, Tuning, tune
    from isthmus.retrieval.verbs.update import (
        AddSettings,
        DeleteSettings,
        MergeSettings,
        Writer,
        add,
        delete,
        merge,
        open_writer,
    )
    from isthmus.retrieval.weights import TunedWeights, tune_weights

__all__ = [
    "AddSettings",
    "CascadeSearcher",
    "DeleteSettings",
    "ExportSettings",
    "Hit",
    "HybridSearcher",
    "IndexSettings",
    "MergeSettings",
    "Parity",
    "ParitySettings",
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
    "AddSettings": "verbs.update",
    "DeleteSettings": "verbs.update",
    "ExportSettings": "verbs.export",
    "Hit": "verbs.search",
    "HybridSearcher": "hybrid",
    "IndexSettings": "verbs.index",
    "MergeSettings": "verbs.update",
    "Parity": "engine_parity",
    "ParitySettings": "engine_parity",
    "CascadeSearcher": "cascade",
    "RerankSettings": "reranker",
    "RerankingSearcher": "reranker",
    "SearchSettings": "verbs.search",
    "Searcher": "searcher",
    "Sparsification": "verbs.sparsify",
    "SparsifySettings": "verbs.sparsify",
    "TuneSettings": "verbs.tune",
    "TunedWeights": "weights",
    "Tuning": "verbs.tune",
    "Writer": "verbs.update",
    "add": "verbs.update",
    "delete": "verbs.update",
    "export": "verbs.export",
    "index": "verbs.index",
    "merge": "verbs.update",
    "open_searcher": "searcher",
    "open_writer": "verbs.update",
    "parity": "engine_parity",
    "search": "verbs.search",
    "sparsify": "verbs.sparsify",
    "tune": "verbs.tune",
    "tune_weights": "weights",
}


def __getattr__(name: str) -> Any:
    """A public name, imported at its first use, so that importing the package is free."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
