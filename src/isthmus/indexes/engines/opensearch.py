"""OpenSearch: bulk files for `rank_features` and `knn_vector` fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from isthmus.indexes.engines._bulk import BulkEngine


class Opensearch(BulkEngine):
    """OpenSearch 2.4 or newer.

    Weights keep nine significant bits: whole numbers up to 511 exactly.
    """

    def settings(self, dimensions: Mapping[str, int], approximate: bool) -> dict[str, Any]:
        """Graphs have to be switched on."""
        return {"index.knn": True} if approximate and "dense" in dimensions else {}

    def properties(self, dimensions: Mapping[str, int], approximate: bool) -> dict[str, Any]:
        """A feature per term; a knn_vector, with a graph or none."""
        graph = {"name": "hnsw", "engine": "faiss", "space_type": "innerproduct"}
        dense = {"type": "knn_vector", "dimension": dimensions.get("dense")}
        kept = {
            "dense": {**dense, **({"method": graph} if approximate else {})},
            "sparse": {"type": "rank_features"},
        }
        return {field: kept[field] for field in dimensions}

    def query(self, field: str, vector: Any, depth: int, approximate: bool) -> dict[str, Any]:
        """The vector's neighbours; dense and exact by a script that reads every document.

        A boost per term and not `neural_sparse`, which takes no weight above 64.
        """
        if field == "sparse":
            terms = [
                {"rank_feature": {"field": f"{field}.{term}", "boost": weight, "linear": {}}}
                for term, weight in vector.items()
            ]
            return {"bool": {"should": terms}}
        if approximate:
            return {"knn": {field: {"vector": vector, "k": depth}}}
        params = {"field": field, "query_value": vector, "space_type": "innerproduct"}
        script = {"lang": "knn", "source": "knn_score", "params": params}
        return {"script_score": {"query": {"match_all": {}}, "script": script}}
