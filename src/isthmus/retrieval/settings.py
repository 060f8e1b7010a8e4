"""What is opened to search or to serve: indexes, their encoder, and a re-ranker."""

from __future__ import annotations

from pydantic import Field

from isthmus.retrieval.hybrid_folder import Combination
from isthmus.retrieval.reranker import RerankSettings


class RetrieverSettings(Combination):
    """The first index's encoder and search, further indexes, their fusion, and a re-ranker."""

    hybrid: list[str] = Field([], description="further indexes, whose answers are fused in")
    model: str | None = Field(
        None,
        description="the encoder of the first index, if it moved or is not on this disk yet",
    )
    hnsw: bool = Field(
        False,
        description="search a dense index by the graph that `index` built beside it, which may "
        "miss documents",
    )
    rerank: RerankSettings | None = Field(
        None, description="a cross-encoder that reads the best once more"
    )
