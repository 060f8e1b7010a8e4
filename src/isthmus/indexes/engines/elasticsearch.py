"""Elasticsearch: bulk files for `sparse_vector` (nothing pruned) and `dense_vector` fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from isthmus.indexes.engines._bulk import BulkEngine

# The scores of similarity max_inner_product, of every document.
_EXACT = "double s = dotProduct(params.vector, 'dense'); return s < 0 ? 1 / (1 - s) : s + 1"


class Elasticsearch(BulkEngine):
    """Elasticsearch 8.19, 9.1 or newer.

    Weights keep nine significant bits: whole numbers up to 511 exactly.
    """

    def properties(self, dimensions: Mapping[str, int], approximate: bool) -> dict[str, Any]:
        """A sparse_vector that keeps rare and light terms; a dense_vector, with a graph or none."""
        graph = {"similarity": "max_inner_product", "index_options": {"type": "hnsw"}}
        dense = {"type": "dense_vector", "dims": dimensions.get("dense"), "index": approximate}
        sparse = {"type": "sparse_vector", "index_options": {"prune": False}}
        kept = {"dense": {**dense, **(graph if approximate else {})}, "sparse": sparse}
        return {field: kept[field] for field in dimensions}

    def query(self, field: str, vector: Any, depth: int, approximate: bool) -> dict[str, Any]:
        """The vector's neighbours; dense and exact by a script that reads every document."""
        if field == "sparse":
            return {"sparse_vector": {"field": field, "query_vector": vector, "prune": False}}
        if approximate:
            seen = min(10_000, max(100, 2 * depth))
            return {"knn": {"field": field, "query_vector": vector, "num_candidates": seen}}
        script = {"source": _EXACT, "params": {"vector": vector}}
        return {"script_score": {"query": {"match_all": {}}, "script": script}}
