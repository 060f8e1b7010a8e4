"""Searcher = encoder + index; fusion of several; re-ranking; the verbs `index` and `search`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from isthmus.search.hybrid import HybridSearcher, TunedWeight
    from isthmus.search.indexing import IndexSettings, index
    from isthmus.search.reranking import RerankingSearcher, RerankSettings
    from isthmus.search.searcher import Searcher, open_searcher
    from isthmus.search.searching import Hit, SearchSettings, search

__all__ = [
    "Hit",
    "HybridSearcher",
    "IndexSettings",
    "RerankSettings",
    "RerankingSearcher",
    "SearchSettings",
    "Searcher",
    "TunedWeight",
    "index",
    "open_searcher",
    "search",
]

_HOMES = {
    "Hit": "searching",
    "HybridSearcher": "hybrid",
    "IndexSettings": "indexing",
    "RerankSettings": "reranking",
    "RerankingSearcher": "reranking",
    "SearchSettings": "searching",
    "Searcher": "searcher",
    "TunedWeight": "hybrid",
    "index": "indexing",
    "open_searcher": "searcher",
    "search": "searching",
}


def __getattr__(name: str) -> Any:
    """A public name, imported when it is first asked for, so that importing the package is free."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
