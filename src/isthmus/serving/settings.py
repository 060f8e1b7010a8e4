"""How an index is served, and what a request may ask for."""

from __future__ import annotations

from pydantic import Field

from isthmus.config import Settings
from isthmus.retrieval.reranker import RerankSettings


class Limits(Settings):
    """The most that one request may ask for."""

    query_characters: int = Field(1000, ge=1, description="Maximum number of characters of a query")
    k: int = Field(100, ge=1, description="Maximum number of hits")
    body_bytes: int = Field(4 * 2**20, ge=1, description="Maximum size of the body of a request")
    connections: int = Field(
        2000, ge=1, description="Maximum number of open connections; one more is answered by 503"
    )
    idle_seconds: int = Field(
        5, ge=0, description="Seconds that a connection without a new request stays open"
    )


class ServeSettings(Settings):
    """Which retrievers are served, and how much of them one request may have."""

    verb = "serve"

    model: str | None = Field(
        None, description="The encoder, if it moved or is not on this disk yet"
    )
    hnsw: bool = Field(
        False, description="Search dense vectors by their graph, which may miss documents"
    )
    rerank: RerankSettings | None = Field(
        None, description="Cross-encoder that scores the best hits again"
    )
    hosts: list[str] = Field(
        [], description="Names of this server besides localhost, for a proxy in front of it"
    )
    batch: int = Field(64, ge=1, description="Maximum number of queries answered together")
    remembered: int = Field(2048, ge=0, description="Number of queries whose vectors are kept")
    check_seconds: float = Field(
        1.0, ge=0, description="Seconds between two checks for a changed index; 0: none"
    )
    stop_seconds: int = Field(
        30, ge=0, description="Seconds to finish requests under way when the server is stopped"
    )
    limits: Limits = Field(Limits(), description="The most that one request may ask for")
